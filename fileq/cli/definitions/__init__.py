"""The definitions of all commands, which cli/parser.py lists. Each module must import nothing heavy at import time."""

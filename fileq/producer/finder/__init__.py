"""Finds files below scan_dir, by scans and by file-system events. Never opens a file, never calls a broker.

scan.py    which files count; lists directories, in bounded steps
finder.py  the stage made of it: which directory is scanned next, and when; watches directories and collects events
"""

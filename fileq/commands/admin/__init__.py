"""The admin commands: queries and repairs that return plain values.

The command line prints them as text or as JSON. Nothing here may parse arguments, open a broker or print.
"""

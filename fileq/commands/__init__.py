"""What the commands do, without the command line: each function takes values and returns values.

`cli` parses arguments, calls these functions and prints the results.
"""

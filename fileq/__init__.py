"""fileq: drop a file into a directory; it is queued once, processed, retried and never lost.

Importing this package must stay instant: no third-party import here.
"""

__version__ = "0.1.0"

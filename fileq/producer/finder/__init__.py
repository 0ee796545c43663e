"""Finds files below scan_dir, by scans and by file-system events. Never opens a file, never calls a broker.

scan.py            which files count; lists directories, in bounded steps
watch.py           which directories are watched and which are polled; collects events
database_files.py  the files of the SQLite broker, which never count
finder.py          the stage made of these; plans which directory is scanned next, and when
"""

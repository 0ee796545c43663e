"""Finds files below scan_dir, by scans and by file-system events. Never opens a file, never calls a broker.

`rules` says which files count, `walk` lists directories, `watch` collects events, `schedule` plans the scans, and
`finder` makes one stage of them.
"""

"""Finds files below scan_dir, by scans and by file-system events. Never opens a file, never calls a broker.

rules.py        which files count
scan.py         lists directories, in bounded steps
schedule.py     plans which directory is scanned next, and when
inotify.py      collects the events of watched directories
watch_modes.py  decides which directories are watched and which are polled
tree_watch.py   watches the directories that a scan enters
finder.py       the stage made of these
"""

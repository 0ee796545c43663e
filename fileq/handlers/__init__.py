"""Handlers: what runs on a job. Registry, routes, the run of one task, and the built-ins that routes can `use`.

registry.py holds what @fileq.handler says, routes.py which handler gets which job, files.py looks at the file,
run.py makes one task an outcome; commands.py, loop.py and endings.py are its parts. No broker is ever seen from here.
"""

from fileq.handlers.builtin import checksum, simulate

__all__ = ["checksum", "simulate"]

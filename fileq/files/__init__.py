"""What producers and workers both need to know about files: globs, mounts, path mapping, signatures of versions."""

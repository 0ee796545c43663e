"""What producers and workers both need to know about files: globs, path mapping, versions and file systems."""

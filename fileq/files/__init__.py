"""What fileq knows of files: globs, mounts, path mapping and signatures. Nothing here knows a job or a broker."""

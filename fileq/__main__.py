"""`python -m fileq` is `fileq`."""

import sys

# `python -m` puts the working directory first on the path: a csv.py in an inbox would replace that of the standard
# library. It stays if fileq itself is imported from there, as in a checkout.
if not sys.flags.safe_path and __file__ != f"{sys.path[0]}/fileq/__main__.py":
    del sys.path[0]

from fileq.cli import main

if __name__ == "__main__":
    sys.exit(main())

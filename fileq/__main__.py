"""`python -m fileq` is `fileq`."""

import sys

from fileq.cli import main

if __name__ == "__main__":
    sys.exit(main())

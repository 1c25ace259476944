"""`python -m queuert` is the command `queuert`."""

import sys

from queuert.cli import main

if __name__ == "__main__":
    sys.exit(main())

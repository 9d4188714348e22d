"""`python -m fedtide` is the command `fedtide`."""

import sys

from fedtide.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

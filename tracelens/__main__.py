"""`python -m tracelens` is `tracelens`; worker processes import this module and do not run it."""

import sys

from tracelens.supervisor import main

if __name__ == "__main__":
    sys.exit(main())

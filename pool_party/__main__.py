"""`python -m pool_party [options] app.py ...` runs a program with its pools replaced by ours."""

import sys

from pool_party._running import command

if __name__ == "__main__" and (status := command.main(sys.argv[1:], "python -m pool_party")):
    sys.exit(status)

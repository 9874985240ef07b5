"""The planets of each task's own, and a list of 65,536 floats as its result."""

import os
import sys

if __name__ == "__main__":  # workers of pools import this file too
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from party import main

    main("balance")

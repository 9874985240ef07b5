"""Recursive Fibonacci numbers by a method that changes an attribute at each call."""

import os
import sys

if __name__ == "__main__":  # since workers of pools import this file, too
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from party import main

    main("fib2")

"""What the values of options may be: each function reads one, or says what is wrong with it."""

import argparse
import re


def positive(text: str) -> int:
    """Return a whole number from 1 on.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not re.fullmatch("0*[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def interval_s(text: str) -> float:
    """Return a number of seconds from 0.1 to 3600.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return seconds

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


def size_px(text: str) -> tuple[int, int]:
    """Return the width and the height that a text such as "640x480" names, in pixels.

    Raises:
        argparse.ArgumentTypeError: It names none.
    """
    width, _, height = text.partition("x")
    try:
        return positive(width), positive(height)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 640x480") from None

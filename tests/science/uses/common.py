"""What several uses need."""

import hashlib
import random


def digest(data):
    return hashlib.sha256(bytes(data)).hexdigest()[:16]


def text(n=2000):
    return " ".join(str(random.Random(5).random()) for _ in range(n)).encode()

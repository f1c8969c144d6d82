"""What is kept of the arrays that a program computes, to compare them with those of another one."""

import importlib

np = importlib.import_module("numpy")

MOST_WHOLE = 1 << 16  # numbers of an array that is kept as it is
SUMS = (8, 512)
"""Of a larger array: it is cut into as many parts as the first, and rows of a part, each as long as
the second, are added with random signs. The norm of the sums is that of the array within about a
quarter, and sums of differences are differences of sums (M. Charikar and others, "Finding frequent
items in data streams", 2002).
"""


class Result:
    """An array that a program computes.

    Args:
        numbers: what `kept` made of it.
    """

    def __init__(self, numbers):
        self.numbers = numbers
        self.size = _norm(numbers)
        # how far rounding the arguments moves it, relative to its size
        self.noise = 0.0

    def apart(self, other):
        """How far another one is from this, relative to its size; not finite if one is not."""
        apart = _norm(self.numbers - other.numbers)
        return apart / self.size if self.size else apart


def kept(array):
    """An array as 64-bit numbers, or random sums of it if it is large."""
    numbers = np.asarray(array).astype(np.float64, copy=False).reshape(-1)
    if numbers.size <= MOST_WHOLE:
        return np.array(numbers)
    count, width = SUMS
    rows = numbers.size // width
    whole, rest = numbers[: rows * width], numbers[rows * width :]
    table = whole.reshape(rows, width)
    random = np.random.default_rng(rows)
    signs = 2.0 * random.integers(0, 2, size=rows, dtype=np.int8) - 1
    sums = []
    for part in range(count):
        of_part = slice(rows * part // count, rows * (part + 1) // count)
        sums.append(signs[of_part] @ table[of_part])
    return np.concatenate([*sums, rest])


def _norm(numbers):
    return float(np.linalg.norm(numbers))

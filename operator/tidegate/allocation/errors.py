"""Error for an input that the allocator cannot use, named by its field."""

from __future__ import annotations

from math import isfinite

from tidegate.errors import PermanentError

MAX_AMOUNT = 1e12
"""Limit of rates, values and times, so that sums and products stay finite and HiGHS accepts them."""


class InvalidInputError(PermanentError):
    """Number that the allocator cannot use.

    `path` names the object and the field; the message states why and the way out.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


def check_amount(path: str, value: float, *, minimum: float = 0.0) -> None:
    """Raise InvalidInputError unless `value` is a finite number from `minimum` to MAX_AMOUNT."""
    if not isfinite(value):
        raise InvalidInputError(path, f"{value} is not a number; leave it out when it is not known")
    if not minimum <= value <= MAX_AMOUNT:
        raise InvalidInputError(path, f"{value:g} is outside {minimum:g} to {MAX_AMOUNT:g}")


def check_count(path: str, value: int, *, minimum: int = 0) -> None:
    """Raise InvalidInputError unless `value` is a whole number of at least `minimum`."""
    if value < minimum:
        raise InvalidInputError(path, f"{value} is below {minimum}")
    if value > MAX_AMOUNT:
        raise InvalidInputError(path, f"{value} is above {MAX_AMOUNT:g}")

"""What is wrong with an input of the allocator, by the field that holds it."""

from __future__ import annotations

from math import isfinite

from tidegate.errors import PermanentError

LARGEST = 1e12
"""No rate, value or time beyond this: sums and products of such numbers stay finite, and HiGHS takes them."""


class InvalidInputError(PermanentError):
    """A number that the allocator cannot use. `path` names the object and the field, the message says why and the way out."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


def check_amount(path: str, value: float, *, least: float = 0.0) -> None:
    """Raises InvalidInputError unless `value` is a finite number from `least` to LARGEST."""
    if not isfinite(value):
        raise InvalidInputError(path, f"{value} is not a number; leave it out when it is not known")
    if not least <= value <= LARGEST:
        raise InvalidInputError(path, f"{value:g} is outside {least:g} to {LARGEST:g}")


def check_count(path: str, value: int, *, least: int = 0) -> None:
    """Raises InvalidInputError unless `value` is a whole number of at least `least`."""
    if value < least:
        raise InvalidInputError(path, f"{value} is below {least}")
    if value > LARGEST:
        raise InvalidInputError(path, f"{value} is above {LARGEST:g}")

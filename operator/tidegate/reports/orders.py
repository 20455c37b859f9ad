"""The orders of tables. Light on imports: options of the command line are declared with them."""

from enum import StrEnum


class ListOrder(StrEnum):
    """The order of a list."""

    NAME = "name"
    STATE = "state"
    """The worst first; decisions and overrides have no state and are sorted by name."""
    AGE = "age"
    """The newest first."""


class TopOrder(StrEnum):
    """The order of Inferences by their load."""

    REQUESTS = "requests"
    VALUE = "value"
    SLICES = "slices"
    LATENCY = "latency"
    NAME = "name"

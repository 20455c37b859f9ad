"""Isolation of exceptions: an object whose update raises keeps the routing that it had."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from tidegate.errors import describe_without_message


class ObjectFailures:
    """The objects whose last update raised an exception."""

    def __init__(self) -> None:
        self._failures: dict[str, str] = {}

    @property
    def failures(self) -> Mapping[str, str]:
        """Places where the exceptions were raised, by object."""
        return MappingProxyType(self._failures)

    def clear(self, subject: object) -> None:
        """Forget the exception of an object: it is back at its last good state, or deleted."""
        self._failures.pop(str(subject), None)

    @contextmanager
    def isolate(self, subject: object) -> Generator[None]:
        """Update one object: record an exception of the block under its name, and suppress it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever it is, it is about this object alone
            self._failures[str(subject)] = describe_without_message(error)
        else:
            self._failures.pop(str(subject), None)

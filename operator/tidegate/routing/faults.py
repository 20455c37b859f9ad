"""What nobody foresaw about one object stays with that object: it keeps the routing that it had, and all others go on."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from tidegate.errors import describe_without_message


class Faults:
    """The objects of which the last look raised an exception."""

    def __init__(self) -> None:
        self._now: dict[str, str] = {}

    @property
    def now(self) -> Mapping[str, str]:
        """Where the exception was raised, by object."""
        return MappingProxyType(self._now)

    def clear(self, what: object) -> None:
        """The object is as it was when it was last looked at well, or is gone."""
        self._now.pop(str(what), None)

    @contextmanager
    def about(self, what: object) -> Generator[None]:
        """Looks at one object: an exception in the block is kept under its name, and ends the block alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever it is, it is about this object alone
            self._now[str(what)] = describe_without_message(error)
        else:
            self._now.pop(str(what), None)

"""Reserves free ports until the program that gets their numbers has bound them."""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

# Below 30,000, where node ports of a Kubernetes on this machine begin: a bind does not find those taken.
_FIRST_PORT: Final = 10_000
_LAST_PORT: Final = 29_999
_EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class ReservedPort:
    """A port of `address` that we have bound without listening.

    The program that gets the number must bind it with SO_REUSEPORT (Kubernetes: --permit-port-sharing); it gets all
    connections, since our socket does not listen. For a program that does not use SO_REUSEPORT, release the port
    before it starts: numbers that we choose are outside of the kernel's ephemeral range, and no other process that
    uses this class gets them while we live.
    """

    def __init__(self, address: str, number: int = 0) -> None:
        """Bind `number`, or any free port for 0; raises OSError when it is taken."""
        self._socket = _bind_port(address, number) if number else _bind_free_port(address)
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Release the port."""
        self._socket.close()

    def __enter__(self) -> Self:
        """Hold the port for a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the port."""
        self.release()


def find_unused_port(address: str) -> int:
    """Return a free port for a program that binds it soon; no other ReservedPort gets it while we live."""
    with ReservedPort(address) as port:
        return port.number


def _bind_port(address: str, number: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((address, number))
    except OSError:
        listener.close()
        raise
    return listener


def _check_free(address: str, number: int) -> None:
    """Raise OSError when a socket has the port, also one that shares it.

    Who chose the port for a server that shares it may have ended: an API server outlives `tidegate local up`.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as alone:
        alone.bind((address, number))


def _bind_free_port(address: str) -> socket.socket:
    for number in _unclaimed_numbers():
        try:
            _check_free(address, number)
            return _bind_port(address, number)
        except OSError:
            continue
    return _bind_port(address, 0)


@cache
def _unclaimed_numbers() -> Iterator[int]:
    """Yield numbers that no other process has from this class; none if the ephemeral range covers all of them."""
    low, high = (int(bound) for bound in _EPHEMERAL_RANGE.read_text().split())
    numbers = [number for number in range(_FIRST_PORT, _LAST_PORT + 1) if not low <= number <= high]
    start = random.randrange(len(numbers)) if numbers else 0  # noqa: S311  (for fewer collisions, not for secrecy)
    # The kernel releases a process's locks when the process ends, however it ends.
    locks = os.open(
        Path(tempfile.gettempdir(), f"tidegate-ports-{os.geteuid()}"), os.O_RDWR | os.O_CREAT, 0o600
    )
    return (number for number in numbers[start:] + numbers[:start] if _claim_number(locks, number))


def _claim_number(locks: int, number: int) -> bool:
    try:
        fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except BlockingIOError:
        return False
    return True

"""Free ports that stay ours until the program that was told about them has bound them."""

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

# Below 30,000, where the node ports of a Kubernetes on this machine begin: those no bind finds taken.
_FIRST: Final = 10_000
_LAST: Final = 29_999
_OF_THE_KERNEL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class HeldPort:
    """A port of `address`, bound by us without listening.

    The program that gets the number must bind it with SO_REUSEPORT (Kubernetes: --permit-port-sharing); a
    socket that does not listen takes no connection away from it. For a program that does not, let go before it
    starts: a number that we chose is outside of what the kernel gives to connections and to binds of 0, and no
    other process that uses this class gets it for as long as we live.
    """

    def __init__(self, address: str, number: int = 0) -> None:
        """Bind `number`, or any free port for 0; raises OSError when it is taken."""
        self._socket = _bound(address, number) if number else _free(address)
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let go of the port."""
        self._socket.close()

    def __enter__(self) -> Self:
        """Hold the port for a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of it."""
        self.release()


def unused(address: str) -> int:
    """The number of a free port, for a program that is about to bind it: ours, as HeldPort says, without being held."""
    with HeldPort(address) as held:
        return held.number


def _bound(address: str, number: int) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((address, number))
    except OSError:
        held.close()
        raise
    return held


def _free(address: str) -> socket.socket:
    for number in _numbers():
        try:
            return _bound(address, number)
        except OSError:
            continue
    return _bound(address, 0)


@cache
def _numbers() -> Iterator[int]:
    """Numbers that no other process has from here; none if the kernel gives all of them to connections."""
    least, most = (int(bound) for bound in _OF_THE_KERNEL.read_text().split())
    ours = [number for number in range(_FIRST, _LAST + 1) if not least <= number <= most]
    start = random.randrange(len(ours)) if ours else 0  # noqa: S311  (for fewer collisions, not for secrecy)
    # The kernel lets go of a process's locks when the process ends, however it ends.
    locks = os.open(
        Path(tempfile.gettempdir(), f"tidegate-ports-{os.geteuid()}"), os.O_RDWR | os.O_CREAT, 0o600
    )
    return (number for number in ours[start:] + ours[:start] if _locked(locks, number))


def _locked(locks: int, number: int) -> bool:
    try:
        fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
    except BlockingIOError:
        return False
    return True

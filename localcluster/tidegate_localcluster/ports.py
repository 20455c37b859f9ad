"""Free ports that stay ours until the program that was told about them has bound them."""

import socket
from types import TracebackType
from typing import Self


class HeldPort:
    """A port of `address`, bound by us without listening.

    The program that gets the number must bind it with SO_REUSEPORT (Kubernetes: --permit-port-sharing); a
    socket that does not listen takes no connection away from it, and nobody else is given the number.
    """

    def __init__(self, address: str, number: int = 0) -> None:
        """Bind `number`, or any free port for 0; raises OSError when it is taken."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((address, number))
        except OSError:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let go of the port; call it once the program listens."""
        self._socket.close()

    def __enter__(self) -> Self:
        """Hold the port for a block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of it."""
        self.release()

"""TCP forwards from 127.0.0.1 of the machine into the cluster's network namespace.

A socket belongs to the network namespace it was made in: `up` makes the listening ones on the machine and hands
them down, and this process, which lives inside, accepts there and connects here. So nothing runs outside, and
with the last process inside the ports are free again.
"""

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate_localcluster import network
from tidegate_localcluster.api_client import ApiClient
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.process import Process
from tidegate_localcluster.state import Forward, StateDir

LOOPBACK = "127.0.0.1"
BACKLOG = 512
RESOLVED_FOR_S = 2.0
CONNECT_TIMEOUT_S = 5.0
HIGH_WATER_BYTES = 256 * 1024
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Kubernetes Service."""

    namespace: str
    name: str
    port: int

    @property
    def path(self) -> str:
        """Where the API server keeps it."""
        return f"/api/v1/namespaces/{self.namespace}/services/{self.name}"


SERVICES: Mapping[Forward, ServicePort] = {
    Forward.GATEWAY: ServicePort("tidegate-system", "tidegate-gateway", 8080),
    Forward.DASHBOARD: ServicePort("tidegate-system", "tidegate-web", 8080),
    Forward.PROMETHEUS: ServicePort("monitoring", "prometheus", 9090),
}


def listen(port: int) -> socket.socket:
    """A listening socket on 127.0.0.1 of the current network namespace; raises OSError when `port` is taken."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def forwards_process(
    state_dir: StateDir, server: str, descriptors: Mapping[Forward, int], logs: Path
) -> Process:
    """The process that serves the listening sockets `descriptors`."""
    pairs = [f"{forward}={descriptor}" for forward, descriptor in descriptors.items()]
    return Process(
        "forwards",
        [sys.executable, "-m", __name__, state_dir.path, server, *pairs],
        log=logs / "forwards.log",
        descriptors=tuple(descriptors.values()),
    )


class ServiceAddresses:
    """Where Services are, asked of the API server when a connection needs it and remembered for a moment."""

    def __init__(self, client: ApiClient) -> None:
        """Ask through `client`."""
        self._client = client
        self._known: dict[ServicePort, tuple[float, str]] = {}

    async def resolve(self, service: ServicePort) -> tuple[str, int]:
        """Address and port to connect to; raises LocalClusterError while the Service does not exist."""
        now = time.monotonic()
        found = self._known.get(service)
        if found is None or now - found[0] > RESOLVED_FOR_S:
            body = await asyncio.to_thread(self._client.get, service.path)
            if body is None:
                raise LocalClusterError(f"Service {service.namespace}/{service.name} does not exist yet")
            found = (now, body["spec"]["clusterIP"])
            self._known[service] = found
        return found[1], service.port


class Relay(asyncio.Protocol):
    """One direction's reader: whatever arrives goes to the peer, at the peer's speed, with its half-closes."""

    def __init__(self) -> None:
        """A relay without a connection."""
        self.peer: Relay | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  what TCP gives; narrows for the type checkers
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        """Pass the half-close on and keep our own writing side open."""
        if self.peer is not None and self.peer.transport is not None and self.peer.transport.can_write_eof():
            self.peer.transport.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the other side too."""
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()

    def pause_writing(self) -> None:
        """Our peer reads too fast for us."""
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        """Our peer may read again."""
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()


class Forwarder:
    """Accepts on inherited sockets and connects each client to the address of the moment."""

    def __init__(self, services: ServiceAddresses, apiserver: tuple[str, int]) -> None:
        """Forward to `apiserver` and to whatever `services` resolves."""
        self._services = services
        self._apiserver = apiserver

    async def serve(self, listeners: Sequence[tuple[Forward, socket.socket]]) -> None:
        """Serve all listeners until cancelled."""
        async with asyncio.TaskGroup() as group:
            for forward, listener in listeners:
                listener.setblocking(False)
                group.create_task(self._accept(forward, listener, group))

    async def _accept(self, forward: Forward, listener: socket.socket, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            group.create_task(self._connect(forward, client))

    async def _connect(self, forward: Forward, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                host, port = await self._target(forward)
                _, outward = await loop.create_connection(Relay, host, port)
        except (OSError, LocalClusterError, TimeoutError) as error:
            log.warning("%s: %s", forward, error)
            client.close()
            return
        inward = Relay()
        inward.peer, outward.peer = outward, inward
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError):
            await loop.connect_accepted_socket(lambda: inward, client)

    async def _target(self, forward: Forward) -> tuple[str, int]:
        if forward is Forward.APISERVER:
            return self._apiserver
        return await self._services.resolve(SERVICES[forward])


def main() -> None:
    """Serve: arguments are the state folder, the API server's URL and `forward=descriptor` pairs."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    state_dir, server = StateDir(Path(sys.argv[1])), sys.argv[2]
    pairs = [argument.partition("=") for argument in sys.argv[3:]]
    outside = {Forward(name): socket.socket(fileno=int(number)) for name, _, number in pairs}
    # The same ports inside, so that a kubeconfig and every address mean the same on both sides.
    inside = {forward: listen(listener.getsockname()[1]) for forward, listener in outside.items()}
    client = ApiClient.of_administrator(state_dir.pki, server)
    apiserver = (network.node_network(0).address, network.APISERVER_PORT)
    asyncio.run(Forwarder(ServiceAddresses(client), apiserver).serve([*outside.items(), *inside.items()]))


if __name__ == "__main__":
    main()

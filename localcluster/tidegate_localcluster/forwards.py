"""TCP forwards from 127.0.0.1 of the machine into the cluster's network namespace.

A socket belongs to the network namespace that it was created in: `up` creates the listening sockets on the machine
and passes them to `forward`, which runs inside, accepts on them and connects inside. So no process runs outside, and
the ports are free again when the last process inside ends.
"""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate_localcluster import network
from tidegate_localcluster.ports import find_unused_port
from tidegate_localcluster.process import ChildProcess
from tidegate_localcluster.state import Forward

LOOPBACK = "127.0.0.1"
BACKLOG = 512


@dataclass(frozen=True, slots=True)
class ServicePort:
    """A port of a Kubernetes Service."""

    namespace: str
    name: str
    port: int

    @property
    def api_path(self) -> str:
        """Return the path of the Service in the API."""
        return f"/api/v1/namespaces/{self.namespace}/services/{self.name}"

    @property
    def dial_target(self) -> str:
        """Return the host:port to connect to; the dot after the domain skips the search domains."""
        return f"{self.name}.{self.namespace}.svc.{network.CLUSTER_DOMAIN}.:{self.port}"


SERVICE_PORTS: Mapping[Forward, ServicePort] = {
    Forward.GATEWAY: ServicePort("tidegate-system", "tidegate-gateway", 8080),
    Forward.DASHBOARD: ServicePort("tidegate-system", "tidegate-web", 8080),
    Forward.PROMETHEUS: ServicePort("monitoring", "prometheus", 9090),
}


def open_listener(port: int) -> socket.socket:
    """Return a listening socket on 127.0.0.1 of the current network namespace; 0 takes a free port.

    Raises OSError when `port` is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port or find_unused_port(LOOPBACK)))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def resolve_target(forward: Forward) -> str:
    """Return the host:port inside to which `forward` connects; a Service is resolved for each connection."""
    if forward is Forward.APISERVER:
        return f"{network.assign_node_network(0).address}:{network.APISERVER_PORT}"
    return SERVICE_PORTS[forward].dial_target


def make_forwards_process(
    program: Path, listeners: Sequence[tuple[Forward, int]], logs: Path
) -> ChildProcess:
    """Return the process that serves the listening sockets, given as pairs of forward and descriptor."""
    pairs = [f"{descriptor}={resolve_target(forward)}" for forward, descriptor in listeners]
    return ChildProcess(
        "forwards",
        [program, "-dns", f"{network.DNS_ADDRESS}:53", *pairs],
        log=logs / "forwards.log",
        descriptors=[descriptor for _, descriptor in listeners],
    )

"""Serves Prometheus its scrape targets, over its HTTP service discovery.

Debian's Prometheus, the one that needs no build, has no Kubernetes discovery. This process does the part of it that
the local cluster needs: annotated pods and real nodes. It runs in the cluster's network namespace.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tidegate_localcluster import network
from tidegate_localcluster.api_client import ApiClient
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.process import ChildProcess
from tidegate_localcluster.state import StateDir

PORT = 9099
SCRAPE, SCRAPE_PORT, SCRAPE_PATH = "prometheus.io/scrape", "prometheus.io/port", "prometheus.io/path"
LOCAL_NODES = "/api/v1/nodes?labelSelector=tidegate.io%2Flocal%3Dtrue"
RUNNING_PODS = "/api/v1/pods?fieldSelector=status.phase%3DRunning&resourceVersion=0"
LABEL_PREFIX = "tidegate.io/"
SIDECAR_PORTS = frozenset({"agent", "shard"})
"""Names of ports that are scraped in addition to the annotated one: those of the containers beside a model."""

TargetGroup = Mapping[str, object]
log = logging.getLogger(__name__)


def find_pod_targets(pods: Sequence[Mapping[str, Any]]) -> tuple[TargetGroup, ...]:
    """Return the targets of each annotated pod with an address: its annotated port and those of SIDECAR_PORTS."""
    return tuple(target for pod in pods for target in _find_targets(pod))


def _find_targets(pod: Mapping[str, Any]) -> Iterator[TargetGroup]:
    metadata, address = pod["metadata"], pod["status"].get("podIP")
    annotations: Mapping[str, str] = metadata.get("annotations", {})
    port = annotations.get(SCRAPE_PORT, "")
    if annotations.get(SCRAPE) != "true" or not port.isdecimal() or not address:
        return
    labels: Mapping[str, str] = metadata.get("labels", {})
    own_labels = {
        _to_label_name(name): value for name, value in labels.items() if name.startswith(LABEL_PREFIX)
    }
    target_labels = {
        **own_labels,
        "namespace": metadata["namespace"],
        "pod": metadata["name"],
        "node": pod["spec"].get("nodeName", ""),
    }
    path = annotations.get(SCRAPE_PATH, "/metrics")
    yield {"targets": [f"{address}:{port}"], "labels": {**target_labels, "__metrics_path__": path}}
    for sidecar_port in _find_sidecar_ports(pod["spec"]):
        yield {
            "targets": [f"{address}:{sidecar_port}"],
            "labels": {**target_labels, "__metrics_path__": "/metrics"},
        }


def _find_sidecar_ports(spec: Mapping[str, Any]) -> Iterator[int]:
    """Yield the ports of SIDECAR_PORTS of all containers."""
    # A sidecar is an init container that keeps running.
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        for port in container.get("ports", ()):
            if port.get("name") in SIDECAR_PORTS:
                yield port["containerPort"]


def _to_label_name(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name)


def find_node_targets(nodes: Sequence[Mapping[str, Any]]) -> tuple[TargetGroup, ...]:
    """Return the kubelet of every node as a target."""
    return tuple(
        {
            "targets": [f"{address['address']}:{network.KUBELET_PORT}"],
            "labels": {"node": node["metadata"]["name"]},
        }
        for node in nodes
        for address in node["status"].get("addresses", [])
        if address["type"] == "InternalIP"
    )


def make_discovery_process(state_dir: StateDir, server: str, logs: Path) -> ChildProcess:
    """Return the process that serves Prometheus on the first node's address."""
    return ChildProcess(
        "discovery", [sys.executable, "-m", __name__, state_dir.path, server], log=logs / "discovery.log"
    )


class DiscoveryHandler(BaseHTTPRequestHandler):
    """A handler of GET /pods and GET /nodes; each request reads the API server."""

    target_finders: Mapping[str, Callable[[], Sequence[TargetGroup]]]

    def do_GET(self) -> None:
        """Serve one poll; after an error Prometheus keeps its last targets."""
        find_targets = self.target_finders.get(self.path)
        if find_targets is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            body = json.dumps(find_targets()).encode()
        except (OSError, LocalClusterError) as error:
            log.warning("%s: %s", self.path, error)
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
        """Discard the log lines of successful polls."""


def main() -> None:
    """Serve until killed; the arguments are the state folder and the API server's URL."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    client = ApiClient.as_administrator(StateDir(Path(sys.argv[1])).pki, sys.argv[2])
    DiscoveryHandler.target_finders = {
        "/pods": lambda: find_pod_targets(client.list_items(RUNNING_PODS)),
        "/nodes": lambda: find_node_targets(client.list_items(LOCAL_NODES)),
    }
    ThreadingHTTPServer((network.assign_node_network(0).address, PORT), DiscoveryHandler).serve_forever()


if __name__ == "__main__":
    main()

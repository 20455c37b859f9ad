"""Tells Prometheus what to scrape, over its HTTP service discovery.

Debian's Prometheus, the one that needs no build, has no Kubernetes discovery. This process does the part of it that
the local cluster needs: annotated pods and real nodes. It lives in the cluster's network namespace.
"""

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tidegate_localcluster import network
from tidegate_localcluster.api_client import ApiClient
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.process import Process
from tidegate_localcluster.state import StateDir

PORT = 9099
SCRAPE, SCRAPE_PORT, SCRAPE_PATH = "prometheus.io/scrape", "prometheus.io/port", "prometheus.io/path"
LOCAL_NODES = "/api/v1/nodes?labelSelector=tidegate.io%2Flocal%3Dtrue"
RUNNING_PODS = "/api/v1/pods?fieldSelector=status.phase%3DRunning&resourceVersion=0"
LABEL_PREFIX = "tidegate.io/"

Target = Mapping[str, object]
log = logging.getLogger(__name__)


def pod_targets(pods: Sequence[Mapping[str, Any]]) -> tuple[Target, ...]:
    """One target per annotated pod that has an address."""
    return tuple(target for pod in pods if (target := _pod_target(pod)) is not None)


def _pod_target(pod: Mapping[str, Any]) -> Target | None:
    metadata, address = pod["metadata"], pod["status"].get("podIP")
    annotations: Mapping[str, str] = metadata.get("annotations", {})
    port = annotations.get(SCRAPE_PORT, "")
    if annotations.get(SCRAPE) != "true" or not port.isdecimal() or not address:
        return None
    labels: Mapping[str, str] = metadata.get("labels", {})
    ours = {_label_name(name): value for name, value in labels.items() if name.startswith(LABEL_PREFIX)}
    return {
        "targets": [f"{address}:{port}"],
        "labels": {
            **ours,
            "__metrics_path__": annotations.get(SCRAPE_PATH, "/metrics"),
            "namespace": metadata["namespace"],
            "pod": metadata["name"],
            "node": pod["spec"].get("nodeName", ""),
        },
    }


def _label_name(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name)


def node_targets(nodes: Sequence[Mapping[str, Any]]) -> tuple[Target, ...]:
    """The kubelet of every node."""
    return tuple(
        {
            "targets": [f"{address['address']}:{network.KUBELET_PORT}"],
            "labels": {"node": node["metadata"]["name"]},
        }
        for node in nodes
        for address in node["status"].get("addresses", [])
        if address["type"] == "InternalIP"
    )


def discovery_process(state_dir: StateDir, server: str, logs: Path) -> Process:
    """The process that answers Prometheus on the first node's address."""
    return Process(
        "discovery", [sys.executable, "-m", __name__, state_dir.path, server], log=logs / "discovery.log"
    )


class Handler(BaseHTTPRequestHandler):
    """GET /pods and GET /nodes, answered from the API server each time."""

    questions: Mapping[str, Callable[[], Sequence[Target]]]

    def do_GET(self) -> None:
        """Answer one poll; Prometheus keeps what it had when it gets an error."""
        question = self.questions.get(self.path)
        if question is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            body = json.dumps(question()).encode()
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
        """Say nothing about polls that went well."""


def main() -> None:
    """Serve; arguments are the state folder and the API server's URL."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    client = ApiClient.of_administrator(StateDir(Path(sys.argv[1])).pki, sys.argv[2])
    Handler.questions = {
        "/pods": lambda: pod_targets(client.items(RUNNING_PODS)),
        "/nodes": lambda: node_targets(client.items(LOCAL_NODES)),
    }
    ThreadingHTTPServer((network.node_network(0).address, PORT), Handler).serve_forever()


if __name__ == "__main__":
    main()

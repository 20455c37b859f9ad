"""Releases by the controllers as a real process: killed at each step, they end as if nothing had been."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from builders.inference import inference_body
from builders.model_access import model_access_body
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl, wait_for_account
from fixtures.processes import SYSTEM_NAMESPACE, controllers_settings, tidegate
from tidegate.resources.names import INFERENCE_LABEL, MANAGED_BY, MANAGER

# Pods must have addresses of their own, and nobody else has this one.
ADDRESS = "127.0.0.86"
STEPS = (10, 100)
PER_S = 2000.0


@dataclass
class CountingGateway:
    """What an Envoy's page of statistics says while requests come without pause; `failing` of the target's."""

    namespace: str
    failing: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def page(self) -> str:
        age = time.monotonic() - self.started
        requests = int(PER_S * age)
        failures = int(requests * self.failing)
        counts = {
            "server.uptime": int(age),
            self._name("v3", "grpc.success"): requests,
            self._name("v4", "grpc.success"): requests - failures,
            self._name("v4", "grpc.failure"): failures,
        }
        return "".join(f"{name}: {value}\n" for name, value in counts.items())

    def _name(self, inference: str, counter: str) -> str:
        return f"cluster.release/{self.namespace}/ctr/{inference}/grpc.{counter}"


@contextmanager
def serving(gateway: CountingGateway) -> Iterator[int]:
    """Shows the page; the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = gateway.page().encode()
            self.send_response(200 if self.path.startswith("/stats?") else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer((ADDRESS, 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(5)


@pytest.fixture
def gateway_pod(kubectl: Kubectl, crds: Path) -> Iterator[None]:
    """A ready pod of the gateways, as far as the API server knows."""
    del crds
    kubectl.run("create", "namespace", SYSTEM_NAMESPACE)
    wait_for_account(kubectl, SYSTEM_NAMESPACE)
    labels = {"app.kubernetes.io/instance": "tidegate", "app.kubernetes.io/component": "gateway"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gateway-1", "labels": labels},
        "spec": {"containers": [{"name": "envoy", "image": "none"}]},
    }
    kubectl.apply(pod, namespace=SYSTEM_NAMESPACE)
    kubectl.report_pod("gateway-1", SYSTEM_NAMESPACE, address=ADDRESS)
    yield
    kubectl("delete", "pod", "gateway-1", "-n", SYSTEM_NAMESPACE, "--force", "--grace-period=0")


@dataclass
class Release:
    """A release in the API server, and the processes that bring it forward."""

    kubectl: Kubectl
    namespace: str

    def begin(self) -> None:
        targets = [{"inference": "v3", "weight": 100}, {"inference": "v4", "weight": 0}]
        check = {"metric": "ErrorRate", "max": "0.01"}
        release = {"route": "default", "target": "v4", "steps": STEPS, "interval": "2s", "checks": [check]}
        body = model_access_body(
            namespace=self.namespace, routes=[{"name": "default", "targets": targets}], release=release
        )
        metadata = {"name": "ctr", "namespace": self.namespace}
        self.kubectl.apply({**body, "metadata": metadata}, namespace=self.namespace)

    def target_ready(self) -> None:
        """Gives the target a pod that is ready, as far as the API server knows."""
        inference = inference_body(name="v4", namespace=self.namespace, replicas=0, tier="nearline")
        metadata = {"name": "v4", "namespace": self.namespace}
        self.kubectl.apply({**inference, "metadata": metadata}, namespace=self.namespace)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "v4", "labels": {MANAGED_BY: MANAGER, INFERENCE_LABEL: "v4"}},
            "spec": {"containers": [{"name": "triton", "image": "none"}]},
        }
        wait_for_account(self.kubectl, self.namespace)
        self.kubectl.apply(pod, namespace=self.namespace)
        self.kubectl.report_pod("v4", self.namespace, address="127.0.0.87")

    @property
    def status(self) -> Mapping[str, Any]:
        found = self.kubectl.json("get", "modelaccess", "ctr", "-n", self.namespace)
        release: Mapping[str, Any] = found.get("status", {}).get("release", {})
        return release

    @property
    def told(self) -> Counter[tuple[str, str]]:
        """Events by reason and message."""
        events = self.kubectl.json("get", "events", "-n", self.namespace)["items"]
        found = ((event["reason"], event["message"]) for event in events)
        return Counter(one for one in found if one[0].startswith("Release"))

    def begins(self, step: int) -> None:
        """Waits until the release is at this step, or at a later one where a busy machine has missed it."""
        wait_until(
            lambda: self.status.get("step", 0) >= step,
            what=f"the release gets on to step {step}",
        )

    def ends(self, phase: str) -> None:
        wait_until(
            lambda: self.status.get("phase") in {phase, "RolledBack"},
            what=f"the release is {phase}",
        )


@pytest.mark.integration
@pytest.mark.parametrize(
    ("failing", "phase", "kills"),
    [
        pytest.param(0.0, "Promoted", (1, 2), id="good"),
        pytest.param(
            0.2,
            "RolledBack",
            (1,),
            id="bad",
            marks=pytest.mark.slow(
                "the good one is killed more often; what ends a bad one is in unit/test_release_plan.py"
            ),
        ),
    ],
)
@pytest.mark.no_rerun("a change is lost")
def test_whenever_it_is_killed_the_end_is_the_same(
    kubectl: Kubectl,
    kubeconfig: Path,
    controllers_tls: Path,
    namespace: str,
    gateway_pod: None,
    tmp_path: Path,
    failing: float,
    phase: str,
    kills: tuple[int, ...],
) -> None:
    release = Release(kubectl, namespace)
    with serving(CountingGateway(namespace, failing)) as port:
        settings = {**controllers_settings(controllers_tls), "gateway_metrics_port": str(port)}
        release.target_ready()
        release.begin()
        for number, step in enumerate(kills):
            kubectl.run("delete", "lease", "tidegate-controllers", "-n", SYSTEM_NAMESPACE)
            with tidegate("controllers", kubeconfig, tmp_path / str(number), **settings) as running:
                release.begins(step)
                running.process.kill()
        kubectl.run("delete", "lease", "tidegate-controllers", "-n", SYSTEM_NAMESPACE)
        with tidegate("controllers", kubeconfig, tmp_path / "last", **settings):
            release.ends(phase)
            status = release.status
            ended = f"Release{phase}"
            wait_until(
                lambda: any(reason == ended for reason, _ in release.told),
                what=f"{ended} is told",
            )
    assert (status["phase"], status["weight"]) == (phase, 100 if phase == "Promoted" else 0)
    # What was written right before a kill may lack its event; nothing is told twice.
    assert set(release.told.values()) == {1}

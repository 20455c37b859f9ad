"""Prometheus stops, lies and comes back beneath an allocator at work: real-time keeps its replicas, others their floors, and the pool says which figures it has."""

from __future__ import annotations

import inspect
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from builders import lying_prometheus
from fixtures.installed import Space, stays, until
from fixtures.installed_pool import OwnPool, an_own_pool, paced_load

MONITORING = "monitoring"
SLICES = 4
HELD_S = 12.0
"""Six looks of the allocator."""


class Metrics:
    """The cluster's Prometheus, and somebody who stands before it and changes what it says."""

    def __init__(self, space: Space) -> None:
        self.space, self.kubectl = space, space.kubectl

    def runs(self, replicas: int) -> None:
        """Starts or stops the real one."""
        self.kubectl.run("scale", "deployment", "prometheus", "-n", MONITORING, f"--replicas={replicas}")

        def ready() -> int:
            return sum(
                all(status["ready"] for status in pod["status"].get("containerStatuses", ({"ready": False},)))
                for pod in self._pods("prometheus")
            )

        until(lambda: (len(self._pods("prometheus")), ready()) == (replicas, replicas), "Prometheus is so")

    def _pods(self, name: str) -> list[Mapping[str, Any]]:
        path = f"/api/v1/namespaces/{MONITORING}/pods?labelSelector=app.kubernetes.io/name%3D{name}"
        return self.space.installed.api.items(path)

    @contextmanager
    def before_it(self) -> Generator[None]:
        """The Service leads to the liar while the block lasts."""
        [real] = self._pods("prometheus")
        labels = {"app.kubernetes.io/name": "liar"}
        container = {
            "name": "liar",
            "image": str(self.space.installed.site.values["images.operator"]),
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-c", inspect.getsource(lying_prometheus)],
            "env": [{"name": "REAL", "value": f"http://{real['status']['podIP']}:9090"}],
            "ports": [{"name": "http", "containerPort": 9090}],
            "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "liar", "labels": labels},
            "spec": {
                "containers": [container],
                "nodeSelector": {"tidegate.io/local": "true"},
                "automountServiceAccountToken": False,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            },
        }
        self.kubectl.apply(json.dumps(pod), MONITORING)
        try:
            self.kubectl.wait("condition=Ready", ("pod/liar",), MONITORING, 60)
            self._leads_to("liar")
            yield
        finally:
            self._leads_to("prometheus")
            self.kubectl.run("delete", "pod", "liar", "-n", MONITORING, "--grace-period=0", "--force")

    def _leads_to(self, name: str) -> None:
        patch = json.dumps({"spec": {"selector": {"app.kubernetes.io/name": name}}})
        self.kubectl.run("patch", "service", "prometheus", "-n", MONITORING, "-p", patch)

    def lies(self, how: str) -> None:
        """One of the lies of builders/lying_prometheus.py."""
        path = f"/api/v1/namespaces/{MONITORING}/pods/liar:9090/proxy/lie/{how}"
        assert self.space.installed.api.get_text(path) == how


def standing(pool: OwnPool) -> Mapping[str, Any]:
    """What must not fall."""
    return {
        "told": pool.space.status("inference", "home").get("allocation", {}).get("replicas"),
        "home": pool.ready("home"),
        "rest": pool.ready("rest"),
    }


def fresh(pool: OwnPool) -> tuple[str, str]:
    found = pool.condition("SignalsFresh")
    return found.get("status", ""), found.get("message", "")


def says(pool: OwnPool, status: str, *words: str) -> None:
    """Waits until the pool says of its figures what is true."""

    def said() -> bool:
        found, message = fresh(pool)
        return found == status and all(word in message for word in words)

    until(said, f"SignalsFresh is {status} and says {words}", timeout_s=150.0, evidence=lambda: fresh(pool))


@pytest.mark.timeout(900)
def test_prometheus_that_stops_lies_and_comes_back_costs_nobody_a_replica(space: Space) -> None:
    space.publish("probe", 1)
    metrics = Metrics(space)
    tiers, policy = {"offline": {"floor": 1}}, {"mode": "Auto", "interval": "2s", "dwell": "10s"}
    with an_own_pool(space, "figures", "Auto", tiers=tiers, policy=policy) as pool:
        until(lambda: pool.free() > SLICES, "slices", evidence=pool.status)
        ballast = {"pool": pool.name, "slices": pool.free() - SLICES}
        space.apply("Inference", "ballast", pool.model("probe", 4, placement=ballast, replicas=1))
        scaling = {"minReplicas": 1, "maxReplicas": SLICES}
        space.apply("Inference", "home", pool.model("probe", 4, scaling=scaling))
        space.apply("Inference", "rest", pool.model("probe", 4, scaling=scaling, tier="offline"))
        space.access(("home", 100), name="home")
        space.ready("inference/ballast", "inference/home", "inference/rest", "modelaccess/home")
        wanted = {"told": 3, "home": 3, "rest": 1}

        def unchanged() -> None:
            stays(lambda: standing(pool), "what everybody has", for_s=HELD_S)

        with paced_load(space, "home", 600.0) as load:
            until(
                lambda: standing(pool) == wanted, f"{wanted}", timeout_s=180, evidence=lambda: standing(pool)
            )
            says(pool, "True")
            decided = len(pool.decisions())
            with metrics.before_it():
                for lie in ("NaN", "nothing"):
                    metrics.lies(lie)
                    says(pool, "False")
                    unchanged()
                metrics.lies("truth")
                says(pool, "True")
                # Home has all that it may have, and the offline tier its floor.
                metrics.lies("tenfold")
                unchanged()
            metrics.runs(0)
            try:
                says(pool, "False", "Prometheus")
                unchanged()
                report = load.finish()
                # Nobody asks any more, and nobody can know.
                unchanged()
            finally:
                metrics.runs(1)
        assert (report.failed, report.errors) == (0, ())
        assert standing(pool) == wanted
        assert len(pool.decisions()) == decided
        # The negative: a Prometheus that is believed again says that nobody asks, and home gives.
        says(pool, "True")
        until(
            lambda: standing(pool)["told"] == 1,
            "home gives what nobody asks for",
            timeout_s=240,
            evidence=lambda: (standing(pool), fresh(pool)),
        )

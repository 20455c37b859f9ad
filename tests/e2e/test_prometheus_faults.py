"""Prometheus stops, lies and comes back beneath an allocator at work: real-time keeps its replicas, others their floors, and the pool says which figures it has."""

from __future__ import annotations

import inspect
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from builders import lying_prometheus
from builders.waiting import stays, wait_until
from fixtures.installed import Space
from fixtures.installed_pool import OwnPool, an_own_pool, paced_load

pytestmark = [
    pytest.mark.slow(
        "a Prometheus that lies for minutes; holding and falling back are checked by rules and on the allocator"
    ),
    pytest.mark.alone("changes the installation and stops Prometheus"),
]

MONITORING = "monitoring"
_LIAR = {"app.kubernetes.io/name": "liar"}
SLICES = 4
HELD_S = 10.0
"""Five looks of the allocator."""


class Metrics:
    """The cluster's Prometheus, and somebody between it and the controllers who changes what it says."""

    def __init__(self, space: Space) -> None:
        self.space, self.kubectl = space, space.kubectl

    @contextmanager
    def hangs(self) -> Generator[None]:
        """The real one answers nobody while the block lasts; then it is killed, and begins again with what it had written."""
        with self.space.installed.hanging("storage.tsdb.path"):
            yield

    @contextmanager
    def asked_by_the_controllers(self) -> Generator[None]:
        """The controllers ask the liar while the block lasts."""
        for each in (self._pod(), self._service()):
            self.kubectl.apply(json.dumps(each), MONITORING)
        try:
            self.space.installed.wait_for_pod(MONITORING, "liar")
            self.space.installed.upgrade(controllers__prometheusUrl=f"http://liar.{MONITORING}:9090")
            yield
        finally:
            # The controllers' new pods need the room of the models.
            self.kubectl.run("delete", "inferences.tidegate.io", "--all", "-n", self.space.namespace)
            self.space.installed.upgrade()
            for each in ("pod/liar", "service/liar"):
                self.kubectl.run("delete", each, "-n", MONITORING, "--wait=false")

    def lies(self, how: str) -> None:
        """One of the lies of builders/lying_prometheus.py."""
        path = f"/api/v1/namespaces/{MONITORING}/pods/liar:9090/proxy/lie/{how}"
        assert self.space.installed.api.get_text(path) == how

    def _pod(self) -> Mapping[str, Any]:
        container = {
            "name": "liar",
            "image": str(self.space.installed.site.values["images.operator"]),
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-c", inspect.getsource(lying_prometheus)],
            "env": [{"name": "REAL", "value": f"http://prometheus.{MONITORING}:9090"}],
            "ports": [{"name": "http", "containerPort": 9090}],
            "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "liar", "labels": _LIAR},
            "spec": {
                "containers": [container],
                "nodeSelector": {"tidegate.io/local": "true"},
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            },
        }

    def _service(self) -> Mapping[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "liar"},
            "spec": {"selector": _LIAR, "ports": [{"name": "http", "port": 9090}]},
        }


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

    wait_until(
        said, f"SignalsFresh is {status} and says {words}", timeout_s=150.0, evidence=lambda: fresh(pool)
    )


def test_prometheus_that_stops_lies_and_comes_back_costs_nobody_a_replica(space: Space) -> None:
    space.publish("probe", 1)
    metrics = Metrics(space)
    tiers, policy = {"offline": {"floor": 1}}, {"mode": "Auto", "interval": "2s", "dwell": "10s"}
    # First the controllers, whose new pods find no room on a node whose slices are all given.
    with (
        metrics.asked_by_the_controllers(),
        an_own_pool(space, "figures", "Auto", tiers=tiers, policy=policy) as pool,
    ):
        wait_until(lambda: pool.free() > SLICES, "slices", evidence=pool.status)
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

        with paced_load(space, "home") as load:
            wait_until(
                lambda: standing(pool) == wanted, f"{wanted}", timeout_s=240, evidence=lambda: standing(pool)
            )
            says(pool, "True")
            decided = {each["metadata"]["name"] for each in pool.decisions()}
            metrics.lies("NaN")
            says(pool, "False")
            unchanged()
            metrics.lies("truth")
            says(pool, "True")
            # Home has all that it may have, and the offline tier its floor.
            metrics.lies("tenfold")
            unchanged()
            metrics.lies("truth")
            with metrics.hangs():
                says(pool, "False", "Prometheus")
                unchanged()
            # The negative beside it, that figures which are believed do move compute, is test_allocation.py.
            says(pool, "True")
            report = load.finish()
        assert report.problems == ()
        assert standing(pool) == wanted
        later = [each["spec"] for each in pool.decisions() if each["metadata"]["name"] not in decided]
        # It may be said anew which rules cannot be kept, as demand comes and goes; nobody gives anything for it.
        assert [each["moves"] for each in later if each.get("moves")] == []

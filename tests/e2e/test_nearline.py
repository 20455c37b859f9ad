"""Near-line work in the cluster: pods are scaled away in the middle of a stream, and no message is lost or doubled."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from builders.nearline import nearline_spec
from builders.probe_model import publish_slow
from fixtures.installed import Space, until
from fixtures.nats import NatsElsewhere, program
from fixtures.stream import BUCKET, DEAD, STREAM, SUBJECT, Worked, a_message, score

MESSAGES = 500
YIELD_S = 5.0
OURS = "tidegate_dataplane.agent|tritonserver|triton_python_backend_stub"
NATS = "nats-server"


@pytest.mark.timeout(480)
def test_pods_scaled_away_in_the_middle_yield_and_the_next_one_finishes(space: Space) -> None:
    publish_slow(space.folder("probe"), 1, rounds=10_000)
    ids = [f"job-{number}" for number in range(MESSAGES)]
    with _a_broker(space) as (url, work):
        space.apply("Inference", "probe", _spec(space, url))
        until(
            lambda: space.condition("inference", "probe", "Consuming").get("status") == "True",
            "the stream is consumed",
            evidence=lambda: space.status("inference", "probe"),
        )
        work.publish([a_message(1, name) for name in ids])
        until(
            lambda: work.kept() >= 25,
            "the work has begun",
            evidence=lambda: space.status("inference", "probe"),
        )

        (pod,) = space.pods("probe")

        def processes() -> Sequence[str]:
            return space.installed.processes(OURS, [pod["metadata"]["uid"]])

        assert len(processes()) >= 3  # the agent, Triton, and the model's own
        started = time.monotonic()
        space.patch("inference", "probe", {"replicas": 0})
        until(lambda: not processes(), "nothing of the pod runs", evidence=processes)
        seconds = time.monotonic() - started
        taken = work.kept()
        assert taken < MESSAGES
        # Nobody works: the stream waits, and what the pod held is there for the next one at once.
        assert work.free() == MESSAGES - taken
        assert work.kept() == taken
        until(lambda: not space.pods("probe"), "the pod is gone", evidence=lambda: space.pods("probe"))
        said = space.condition("inference", "probe", "Consuming")
        assert (said["status"], said["reason"]) == ("False", "ScaledToZero")

        space.patch("inference", "probe", {"replicas": 1})
        results = work.done(ids, timeout_s=200)
        work.settled()

        assert set(results) == set(ids)
        assert {score(result) for result in results.values()} == {1001.0}
        assert work.kept() == MESSAGES
        assert work.dead() == []
        # The second pod's Triton ran what the first had left, by its own counter.
        assert MESSAGES - taken <= space.counted("probe") <= MESSAGES - taken + 32
        assert seconds < YIELD_S


def _spec(space: Space, url: str) -> dict[str, Any]:
    return {
        "model": {"name": "probe", "uri": space.uri("probe"), "version": "1"},
        "tier": "nearline",
        "resources": {"cpu": "50m", "memory": "512Mi"},
        "nearline": nearline_spec(
            nats={"url": url, "stream": STREAM, "subject": SUBJECT},
            bucket={"bucket": BUCKET},
            deadLetters={"subject": DEAD},
        ),
    }


@contextmanager
def _a_broker(space: Space) -> Iterator[tuple[str, Worked]]:
    """A NATS server in a pod of the space: the address that pods use, and the stream as we see it from here."""
    folder = space.folder(NATS)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program(), folder / NATS)
    values = space.installed.site.values
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "nats", "labels": {"app": "nats"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "nats",
                    "image": values["images.dataplane"],
                    "imagePullPolicy": "Never",
                    "command": [f"/models/{space.namespace}/{NATS}/{NATS}", "-js", "-sd", "/data"],
                    "readinessProbe": {"tcpSocket": {"port": 4222}, "periodSeconds": 1},
                    "volumeMounts": [
                        {"name": "models", "mountPath": "/models", "readOnly": True},
                        {"name": "data", "mountPath": "/data"},
                    ],
                }
            ],
            "volumes": [
                {"name": "models", "hostPath": {"path": values["models.hostPath"]}},
                {"name": "data", "emptyDir": {}},
            ],
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "nats"},
        "spec": {"selector": {"app": "nats"}, "ports": [{"port": 4222}]},
    }
    for body in (pod, service):
        space.kubectl.apply(json.dumps(body), space.namespace)
    space.kubectl.wait("condition=Ready", ("pod/nats",), space.namespace, 60)
    with space.kubectl.forwarded("pod/nats", 4222, space.namespace) as address:
        work = Worked(NatsElsewhere(f"nats://{address}"), f"tidegate_{space.namespace}_probe")
        work.make()
        yield f"nats://nats.{space.namespace}:4222", work

"""Compute moves between tiers on real Tritons: real-time load takes near-line slices, and no message is lost by it."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from builders.nearline import nearline_spec
from builders.probe_model import publish_slow
from fixtures.installed import Client, Space, until
from fixtures.installed_stream import a_broker
from fixtures.stream import BUCKET, DEAD, STREAM, SUBJECT, a_message, score
from tidegate.planning.pods import is_ready
from tidegate_localcluster.demo.load import Load
from tidegate_localcluster.demo.scoring import Answer
from tidegate_localcluster.node import node_name

POOL = "e2e-allocated"
LABEL = "e2e/allocated"
SLICES = 4
"""That the test leaves of the node."""
CLIENTS, PACE_S = 6, 0.1
"""Far more than three replicas bear, also where an answer takes half a second; and not what keeps two cores busy."""
MESSAGES = 400
ROUNDS = 10_000
MOVED_WITHIN_S = 180.0
RECLAIMED_WITHIN_S = 30.0
"""From the decision until the near-line pods are gone; that they yield within five seconds is shown in test_nearline."""


@contextmanager
def _a_pool(space: Space) -> Generator[None]:
    space.kubectl.run("label", "node", node_name(0), f"{LABEL}=here", "--overwrite")
    _pool(space, "RecommendOnly")
    try:
        yield
    finally:
        space.kubectl.run("delete", "computepool", POOL, "--ignore-not-found")
        space.kubectl.run("label", "node", node_name(0), f"{LABEL}-")


def _pool(space: Space, mode: str) -> None:
    spec = {
        "nodeSelector": {LABEL: "here"},
        "slice": {"cpu": {"cpu": "100m", "memory": "640Mi"}},
        "policy": {"mode": mode, "interval": "2s"},
    }
    space.apply("ComputePool", POOL, spec)


def _status(space: Space) -> Mapping[str, Any]:
    found = space.installed.api.get(f"/apis/tidegate.io/v1alpha1/computepools/{POOL}") or {}
    return found.get("status", {})


def _free(space: Space) -> int:
    return int(_status(space).get("slices", {}).get("free", 0))


def _home(space: Space) -> dict[str, Any]:
    """Each replica is said to bear four requests a second."""
    return {
        "model": {"name": "probe", "uri": space.uri("probe"), "version": "1"},
        "capacity": {"requestsPerSecond": "4"},
        "placement": {"pool": POOL},
    }


def _rank(space: Space, url: str) -> dict[str, Any]:
    return {
        "model": {"name": "probe", "uri": space.uri("slow"), "version": "1"},
        "tier": "nearline",
        "capacity": {"requestsPerSecond": "5"},
        "placement": {"pool": POOL},
        "nearline": nearline_spec(
            nats={"url": url, "stream": STREAM, "subject": SUBJECT},
            bucket={"bucket": BUCKET},
            deadLetters={"subject": DEAD},
        ),
    }


class _Paced(Client):
    def score(self, inputs: Mapping[str, Any]) -> Answer:
        time.sleep(PACE_S)
        return super().score(inputs)


def _load(space: Space, model: str) -> Load:
    address = space.installed.endpoints.gateway
    return space.load(
        1, clients=lambda: _Paced(address, f"{space.namespace}/{model}"), threads=CLIENTS, max_seconds=400.0
    )


def _decisions(space: Space) -> Sequence[Mapping[str, Any]]:
    """Those about the pool, the newest first."""
    found = space.installed.api.get("/apis/tidegate.io/v1alpha1/allocationdecisions") or {}
    ours = [each for each in found.get("items", ()) if each["spec"]["pool"] == POOL]
    return sorted(ours, key=lambda each: str(each["spec"]["at"]), reverse=True)


def _ready(space: Space, model: str) -> int:
    pods = (pod for pod in space.pods(model) if "deletionTimestamp" not in pod["metadata"])
    return sum(map(is_ready, pods))


def _has(space: Space, **wanted: int) -> None:
    """Waits until these models have so many replicas that answer; no pod in between is one too many."""

    def found() -> Mapping[str, int]:
        pods = [pod["metadata"]["name"] for model in wanted for pod in space.pods(model)]
        assert len(pods) <= SLICES, pods
        return {model: _ready(space, model) for model in wanted}

    until(
        lambda: found() == wanted,
        f"{wanted} answer",
        timeout_s=MOVED_WITHIN_S,
        evidence=lambda: (found(), [each["spec"] for each in _decisions(space)[:2]]),
    )


def _counts(space: Space, model: str) -> Mapping[str, float]:
    """Requests that each Triton of a model has run, by its own counter."""
    return {
        pod["metadata"]["name"]: sum(
            each.value
            for each in space.installed.metrics(space.namespace, pod["metadata"]["name"], 8002)
            if each.name == "nv_inference_request_success" and each.labels.get("model") == "probe"
        )
        for pod in space.pods(model)
    }


def _moves(space: Space) -> Mapping[str, tuple[int, int]]:
    """The newest decision: replicas before and after, by model."""
    moves = _decisions(space)[0]["spec"].get("moves", ()) if _decisions(space) else ()
    return {move["inference"].partition("/")[2]: (move["from"], move["to"]) for move in moves}


@pytest.mark.timeout(720)
def test_real_time_load_takes_near_line_slices_and_no_message_is_lost(space: Space) -> None:
    space.publish("probe", 1)
    publish_slow(space.folder("slow"), 1, rounds=ROUNDS)
    ids = [f"job-{number}" for number in range(MESSAGES)]
    space.alone()
    with _a_pool(space), a_broker(space, "rank") as (url, work):
        until(lambda: _free(space) > SLICES, "slices", evidence=lambda: _free(space))
        # Something that is not decided about leaves four of them.
        rest = {**_home(space), "placement": {"pool": POOL, "slices": _free(space) - SLICES}}
        space.apply("Inference", "rest", {**rest, "replicas": 1})
        space.apply("Inference", "home", {**_home(space), "replicas": 1})
        space.apply("Inference", "rank", {**_rank(space, url), "replicas": 3})
        space.access(("home", 100), name="home")
        space.ready("inference/rest", "inference/home", "inference/rank", "modelaccess/home")
        _has(space, home=1, rank=3)
        range_ = {"scaling": {"minReplicas": 1, "maxReplicas": 3}}
        space.patch("inference", "home", {**range_, "replicas": 1})
        space.patch("inference", "rank", {"scaling": {"minReplicas": 0, "maxReplicas": 3}, "replicas": 1})
        work.publish([a_message(1, name) for name in ids])

        with _load(space, "home") as load:
            # It is said what would be done, and nothing is.
            until(
                lambda: _moves(space) == {"rank": (3, 1), "home": (1, 3)},
                "two slices for home are recommended",
                evidence=lambda: (_decisions(space)[:1], _status(space)),
            )
            why = {move["inference"]: move["why"] for move in _decisions(space)[0]["spec"]["moves"]}
            assert "demand" in why[f"{space.namespace}/home"], why
            assert (_ready(space, "home"), _ready(space, "rank")) == (1, 3)

            _pool(space, "Auto")
            _has(space, home=3, rank=1)
            before = _counts(space, "home")
            until(
                lambda: all(count > before[name] + 5 for name, count in _counts(space, "home").items()),
                "every Triton of home runs requests",
                evidence=lambda: (before, _counts(space, "home")),
            )
            report = load.finish()
        assert (report.failed, report.errors) == (0, ())
        assert report.sent > 100

        def applied() -> Mapping[str, Any]:
            outcomes = (each.get("status", {}).get("outcome", {}) for each in _decisions(space))
            return next((each for each in outcomes if "reclaimSeconds" in each), {})

        until(lambda: "appliedAt" in applied(), "it is applied", evidence=lambda: _decisions(space))
        assert 0 < applied()["reclaimSeconds"] < RECLAIMED_WITHIN_S
        assert applied()["movedSlices"] == 4

        results = work.done(ids, timeout_s=200)
        work.settled()
        assert {score(result) for result in results.values()} == {1001.0}
        assert work.kept() == MESSAGES
        assert work.dead() == []

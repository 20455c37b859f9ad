"""Compute moves between tiers on real Tritons: real-time load takes near-line slices, and no message is lost by it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from builders.nearline import nearline_spec
from builders.probe_model import publish_slow
from builders.waiting import wait_until
from fixtures.installed import Space
from fixtures.installed_pool import OwnPool, an_own_pool, paced_load
from fixtures.installed_stream import a_broker
from fixtures.stream import BUCKET, DEAD, STREAM, SUBJECT, a_message, score

SLICES = 4
"""That the test leaves of the node."""
MESSAGES = 400
ROUNDS = 10_000
MOVED_WITHIN_S = 180.0


def _rank(pool: OwnPool, url: str) -> dict[str, Any]:
    nearline = nearline_spec(
        nats={"url": url, "stream": STREAM, "subject": SUBJECT},
        bucket={"bucket": BUCKET},
        deadLetters={"subject": DEAD},
    )
    return pool.model("slow", 5, tier="nearline", nearline=nearline)


def _has(pool: OwnPool, **wanted: int) -> None:
    """Waits until these models have so many replicas that answer; no pod in between is one too many."""

    def found() -> Mapping[str, int]:
        pods = [pod["metadata"]["name"] for model in wanted for pod in pool.space.pods(model)]
        assert len(pods) <= SLICES, pods
        return {model: pool.ready(model) for model in wanted}

    wait_until(
        lambda: found() == wanted,
        f"{wanted} answer",
        timeout_s=MOVED_WITHIN_S,
        evidence=lambda: (found(), [each["spec"] for each in pool.decisions()[:2]]),
    )


def _newest(pool: OwnPool, **wanted: tuple[int, int]) -> Mapping[str, Any] | None:
    """The newest decision, if it moves just these models: replicas before and after."""
    decision = next(iter(pool.decisions()), None)
    moves = decision["spec"].get("moves", ()) if decision is not None else ()
    found = {move["inference"].partition("/")[2]: (move["from"], move["to"]) for move in moves}
    return decision if found == wanted else None


def _plan(pool: OwnPool) -> Mapping[str, tuple[int, int]]:
    """What `tidegate plan` would do now: replicas before and after, by namespace and model."""
    answer = json.loads(pool.space.installed.tidegate("plan", pool.name, "-o", "json"))
    return {move["inference"]: (move["from"], move["to"]) for move in answer["decision"]["moves"]}


@pytest.mark.no_rerun("a lost message")
def test_real_time_load_takes_near_line_slices_and_no_message_is_lost(space: Space) -> None:
    space.publish("probe", 1)
    publish_slow(space.folder("slow"), 1, rounds=ROUNDS)
    # No two alike, exact in float32 also with 1000 added, and of one unit each: the model takes as long for all.
    rows = {f"job-{number}": 1 + number / 1024 for number in range(MESSAGES)}
    with an_own_pool(space, "allocated", "RecommendOnly") as pool, a_broker(space, "rank") as (url, work):
        wait_until(lambda: pool.free() > SLICES, "slices", evidence=pool.status)
        # Something that is not decided about leaves four of them.
        ballast = {"pool": pool.name, "slices": pool.free() - SLICES}
        space.apply("Inference", "rest", pool.model("probe", 4, placement=ballast, replicas=1))
        # Its callers ask for far more than three of its replicas are said to bear.
        space.apply("Inference", "home", pool.model("probe", 4, replicas=1))
        space.apply("Inference", "rank", {**_rank(pool, url), "replicas": 3})
        space.access(("home", 100), name="home")
        space.ready("inference/rest", "inference/home", "inference/rank", "modelaccess/home")
        _has(pool, home=1, rank=3)
        range_ = {"scaling": {"minReplicas": 1, "maxReplicas": 3}}
        space.patch("inference", "home", {**range_, "replicas": 1})
        space.patch("inference", "rank", {"scaling": {"minReplicas": 0, "maxReplicas": 3}, "replicas": 1})
        work.publish([a_message(x, name) for name, x in rows.items()])

        with paced_load(space, "home") as load:
            # It is said what would be done, and nothing is.
            decision = wait_until(
                lambda: _newest(pool, rank=(3, 1), home=(1, 3)),
                "two slices for home are recommended",
                evidence=lambda: (pool.decisions()[:1], pool.status()),
            )
            why = {move["inference"]: move["why"] for move in decision["spec"]["moves"]}
            assert "demand" in why[f"{space.namespace}/home"], why
            assert (len(space.pods("home")), len(space.pods("rank"))) == (1, 3)
            # Whoever asks the leading controllers by a port forward is told the same.
            planned = {f"{space.namespace}/rank": (3, 1), f"{space.namespace}/home": (1, 3)}
            wait_until(
                lambda: _plan(pool) == planned, "the plan has the same moves", evidence=lambda: _plan(pool)
            )

            pool.apply("Auto")
            _has(pool, home=3, rank=1)
            before = pool.counts("home")
            wait_until(
                lambda: all(count > before.get(uid, 0) + 5 for uid, count in pool.counts("home").items()),
                "every Triton of home runs requests",
                evidence=lambda: (before, pool.counts("home")),
            )
            report = load.finish()
        assert report.problems == ()
        assert report.sent > 100

        def applied() -> Mapping[str, Any] | None:
            outcomes = (each.get("status", {}).get("outcome", {}) for each in pool.decisions())
            return next((each for each in outcomes if {"appliedAt", "reclaimSeconds"} <= each.keys()), None)

        outcome = wait_until(applied, "it is applied", evidence=pool.decisions)
        # That near-line pods yield within five seconds is shown in test_nearline.
        assert outcome["reclaimSeconds"] > 0
        assert outcome["movedSlices"] == 4

        results = work.done(tuple(rows), timeout_s=200)
        work.settled()
        assert {name: score(result) for name, result in results.items()} == {
            name: x + 1000 for name, x in rows.items()
        }
        assert work.kept() == MESSAGES
        assert work.dead() == []

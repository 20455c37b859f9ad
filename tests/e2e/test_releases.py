"""A release on real Tritons, through the gateways of the chart: promoted and taken back by what those counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Final

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from builders import probe_model
from builders.load import access_client
from builders.waiting import LIMIT_S, wait_until
from fixtures.installed import PAUSE_S, Installed, Space, a_space

VERSIONS: Final = {"a": 1, "b": 2}
_WRONG: Final = "wrong: "


@pytest.fixture(scope="module")
def space(installed: Installed) -> Iterator[Space]:
    """Models a and b, and c, which loads and is ready, and whose input has another name than clients send."""
    with a_space(installed, "e2e-releases") as space:
        space.publish("a", 1)
        space.publish("b", 2)
        probe_model.publish(space.folder("c"), 3, takes="y")
        for number, name in enumerate("abc", 1):
            space.inference(name, version=number)
        space.ready(*(f"inference/{name}" for name in "abc"))
        yield space


def release_of(space: Space, access: str, target: str) -> None:
    """An access with a release of `target` beside `a`, in steps of a few seconds."""
    release = {
        "route": "default",
        "target": target,
        "steps": [20, 60],
        "interval": "2s",
        "checks": [{"metric": "ErrorRate", "max": "0.01", "minRequests": 100}],
    }
    targets = [{"inference": "a", "weight": 100}, {"inference": target, "weight": 0}]
    route = {"name": "default", "targets": targets, "timeout": f"{LIMIT_S:g}s"}
    space.apply("ModelAccess", access, {"routes": [route], "release": release})


def access_to_a(space: Space, name: str) -> None:
    space.access(("a", 100), name=name)
    space.ready(f"modelaccess/{name}")


def _answered_by(space: Space, access: str) -> set[str]:
    """The versions that answered twenty requests; "" for one that was refused."""

    def version() -> str:
        try:
            return space.ask(access).version
        except InferenceServerException:
            return ""

    return {version() for _ in range(20)}


def release_is(space: Space, access: str, phase: str) -> None:
    wait_until(
        lambda: space.status("modelaccess", access).get("release", {}).get("phase") == phase,
        f"the release is {phase}",
        evidence=lambda: space.status("modelaccess", access),
    )


@pytest.mark.no_rerun("a lost request")
def test_a_good_model_is_promoted_under_load_and_aborted_afterwards(space: Space) -> None:
    access_to_a(space, "good")
    before = space.counted("b")
    with space.load(1, 2, access="good") as load:
        release_of(space, "good", "b")
        release_is(space, "good", "Promoted")
        report = load.finish()
    assert report.problems == ()
    assert space.counted("b") - before > 100
    # The weight follows the status that it is taken from.
    wait_until(lambda: _answered_by(space, "good") == {"2"}, "every request goes to the promoted target")

    space.installed.tidegate("release", "abort", f"{space.namespace}/good")
    release_is(space, "good", "RolledBack")
    wait_until(lambda: _answered_by(space, "good") == {"1"}, "every request goes to the stable target")
    asked = space.counted_at_rest("b")
    assert _answered_by(space, "good") == {"1"}
    assert space.counted_at_rest("b") == asked


def test_a_model_that_cannot_answer_is_taken_back_at_its_first_requests(space: Space) -> None:
    access_to_a(space, "bad")
    with space.load(1, access="bad") as load:
        load.wait_sent(500)
        release_of(space, "bad", "c")
        release_is(space, "bad", "RolledBack")
        report = load.finish()
    assert 0 < report.failed < 0.2 * report.sent
    assert space.status("modelaccess", "bad")["release"]["reason"] == "CheckFailed"
    wait_until(lambda: _answered_by(space, "bad") == {"1"}, "every request goes to the stable target")
    assert space.counted_at_rest("c") == 0


@contextmanager
def asked_through(space: Space, access: str) -> Generator[Counter[str]]:
    """Clients that keep asking `access`, whatever becomes of it: how often each Inference answered, and each status.

    An answer of neither fails the test, also where requests are expected to fail.
    """
    seen: Counter[str] = Counter()
    over = Event()

    def ask(number: int) -> Counter[str]:
        mine: Counter[str] = Counter()
        # Rows that no other client asks about: a pipeline has rows of several in one call.
        rows = np.full((2, 1), number, dtype=np.float32)
        right = {name: probe_model.answer(rows, version) for name, version in VERSIONS.items()}
        client = access_client(space.installed.endpoints.gateway, f"{space.namespace}/{access}")
        while not over.wait(PAUSE_S):
            try:
                scores = client.score({"x": rows}).scores
            except InferenceServerException as error:
                mine[str(error.status())] += 1
            else:
                names = (name for name, answer in right.items() if np.array_equal(scores, answer))
                mine[next(names, f"{_WRONG}{scores.tolist()}")] += 1
        client.close()
        return mine

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, number) for number in range(4)]
        try:
            yield seen
        finally:
            over.set()
        for one in asking:
            seen.update(one.result())
    assert [what for what in seen if what.startswith(_WRONG)] == []


def test_a_release_is_judged_by_what_a_pipeline_asks(space: Space) -> None:
    """A good model is promoted by nobody's calls but the pipeline's; the next one, which cannot answer, is taken back by them."""
    access_to_a(space, "probe")
    pipeline = {
        "modelName": "probe",
        "models": [{"access": "probe", "as": "score"}],
        "resources": {"cpu": "50m", "memory": "512Mi"},
    }
    route = {"name": "only", "timeout": f"{LIMIT_S:g}s", "pipeline": pipeline}
    space.apply("ModelAccess", "scene", {"routes": [route]})
    space.ready("modelaccess/scene")
    before = space.counted_at_rest("b")
    with asked_through(space, "scene") as seen:
        release_of(space, "probe", "b")
        release_is(space, "probe", "Promoted")
    assert seen.keys() == {"a", "b"}, seen
    assert space.counted("b") - before >= seen["b"] / 4 > 0

    with asked_through(space, "scene") as seen:
        release_of(space, "probe", "c")
        release_is(space, "probe", "RolledBack")
    assert space.status("modelaccess", "probe")["release"]["reason"] == "CheckFailed"
    # At most what the first step's fifth brings, by chance a little more; the second one would bring 60 %.
    # With few requests, chance moves the share further.
    chance = max(0.1 * seen.total(), 4 * math.sqrt(0.2 * 0.8 * seen.total()))
    failed = sum(count for what, count in seen.items() if what not in {"a", "b"})
    assert 0 < failed < 0.2 * seen.total() + chance, seen
    assert space.counted_at_rest("c") == 0

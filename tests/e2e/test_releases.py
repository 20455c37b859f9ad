"""A release on real Tritons, through the gateways of the chart: promoted and taken back by what those counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Final

import numpy as np
from tritonclient.utils import InferenceServerException

from builders import probe_model
from builders.waiting import wait_until
from fixtures.installed import PAUSE_S, Client, Space

VERSIONS: Final = {"a": 1, "b": 2}
_WRONG: Final = "wrong: "


def release_of(space: Space, target: str) -> None:
    """The probe's access with a release of `target` beside `a`, in steps of a few seconds."""
    release = {
        "route": "default",
        "target": target,
        "steps": [20, 60],
        "interval": "2s",
        "checks": [{"metric": "ErrorRate", "max": "0.01", "minRequests": 200}],
    }
    targets = [{"inference": "a", "weight": 100}, {"inference": target, "weight": 0}]
    route = {"name": "default", "targets": targets, "timeout": "10s"}
    space.apply("ModelAccess", "probe", {"routes": [route], "release": release})


def a_and_b(space: Space) -> None:
    """Both models, ready; `b` gets nothing yet."""
    space.publish("a", 1)
    for name, version in (("a", 1), ("b", 2)):
        space.inference(name, version=version)
    space.access(("a", 100), ("b", 0))
    space.ready("inference/a", "inference/b", "modelaccess/probe")


def _answered_by(space: Space, count: int) -> set[str]:
    """The versions that answered so many requests; "" for one that was refused."""

    def version() -> str:
        try:
            return space.ask().version
        except InferenceServerException:
            return ""

    return {version() for _ in range(count)}


def release_is(space: Space, phase: str) -> None:
    wait_until(
        lambda: space.status("modelaccess", "probe").get("release", {}).get("phase") == phase,
        f"the release is {phase}",
        evidence=lambda: space.status("modelaccess", "probe"),
    )


def test_a_good_model_is_promoted_under_load_and_aborted_afterwards(space: Space) -> None:
    space.publish("b", 2)
    a_and_b(space)
    before = space.counted("b")
    release_of(space, "b")
    with space.load(1, 2, max_seconds=120) as load:
        release_is(space, "Promoted")
        report = load.finish()
    assert report.problems == ()
    assert space.counted("b") - before > 200
    # The weight follows the status that it is taken from.
    wait_until(lambda: _answered_by(space, 20) == {"2"}, "every request goes to the promoted target")

    space.installed.tidegate("release", "abort", f"{space.namespace}/probe")
    release_is(space, "RolledBack")
    wait_until(lambda: _answered_by(space, 20) == {"1"}, "every request goes to the stable target")
    asked = space.counted_at_rest("b")
    assert {space.ask().version for _ in range(20)} == {"1"}
    assert space.counted_at_rest("b") == asked


def test_a_model_that_cannot_answer_is_taken_back_at_its_first_requests(space: Space) -> None:
    """It loads and is ready, and its input has another name than clients send."""
    probe_model.publish(space.folder("b"), 2, takes="y")
    a_and_b(space)
    with space.load(1, max_seconds=120) as load:
        load.wait_sent(500, timeout_s=60)
        release_of(space, "b")
        release_is(space, "RolledBack")
        report = load.finish()
    assert 0 < report.failed < 0.2 * report.sent
    assert space.status("modelaccess", "probe")["release"]["reason"] == "CheckFailed"
    wait_until(lambda: _answered_by(space, 20) == {"1"}, "every request goes to the stable target")
    assert space.counted_at_rest("b") == 0


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
        client = Client(space.installed.endpoints.gateway, f"{space.namespace}/{access}")
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


def a_pipeline_over_the_probe(space: Space) -> None:
    """Its only calls go to the access that has the release."""
    resources = {"cpu": "50m", "memory": "512Mi"}
    pipeline = {
        "modelName": "probe",
        "models": [{"access": "probe", "as": "score"}],
        "resources": resources,
    }
    route = {"name": "only", "timeout": "10s", "pipeline": pipeline}
    space.apply("ModelAccess", "scene", {"routes": [route]})
    space.ready("modelaccess/scene")


def test_a_release_is_judged_by_what_a_pipeline_asks(space: Space) -> None:
    """A good model is promoted by nobody's calls but the pipeline's; the next one, which cannot answer, is taken back by them."""
    space.publish("b", 2)
    a_and_b(space)
    a_pipeline_over_the_probe(space)
    with asked_through(space, "scene") as seen:
        release_of(space, "b")
        release_is(space, "Promoted")
    assert seen.keys() == {"a", "b"}, seen
    assert space.counted("b") >= seen["b"] / 4 > 0

    probe_model.publish(space.folder("c"), 3, takes="y")
    space.inference("c", version=3)
    space.ready("inference/c")
    with asked_through(space, "scene") as seen:
        release_of(space, "c")
        release_is(space, "RolledBack")
    assert space.status("modelaccess", "probe")["release"]["reason"] == "CheckFailed"
    # At most what the first step's fifth brings, by chance a little more; the second one would bring 60 %.
    assert 0 < sum(count for what, count in seen.items() if what not in {"a", "b"}) < 0.3 * seen.total()
    assert space.counted_at_rest("c") == 0

"""A release from start to end, as a state machine: what it takes to move on, to hold, and to go back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from builders.release import ERRORS, LATENCY, a_release
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import RELEASE_ANNOTATION, ReleaseStatus
from tidegate.planning.access.model_access import with_release
from tidegate.planning.access.release import ReleaseMeasurements, is_under_way, list_due_queries, plan_release
from tidegate.planning.access.release_checks import Evidence, judge_checks
from tidegate.planning.access.release_sample import GatewayReading, ReleaseSample, RequestTally
from tidegate.planning.plan import Event
from tidegate.routing.release import share_in_effect

START = datetime(2026, 1, 1, tzinfo=UTC)
INTERVAL = timedelta(minutes=2)


@dataclass
class Side:
    """What one side of a release does with its requests."""

    failing: float = 0.0
    slowest_ms: int = 20


@dataclass
class World:
    """Gateways that count, and a release that is looked at; nothing is kept between looks but the object itself."""

    access: ModelAccess
    now: datetime = START
    rate: float = 1000.0
    target: Side = field(default_factory=Side)
    stable: Side = field(default_factory=Side)
    silent: Sequence[str] = ()
    answers: Mapping[str, float | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    writes: int = 0
    pods: int = 1

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(7)
        self.started = {"gateway-1": START - timedelta(hours=1), "gateway-2": START - timedelta(hours=1)}
        self.counted = {
            name: (RequestTally(9_000, 90, {5: 9_000}), RequestTally(90_000, 0, {5: 90_000}))
            for name in self.started
        }

    @property
    def status(self) -> ReleaseStatus:
        assert self.access.status.release is not None
        return self.access.status.release

    def traffic(self, seconds: float) -> None:
        share = share_in_effect(self.access) / 100
        for name, (target, stable) in self.counted.items():
            requests = int(self.rate * seconds / len(self.counted))
            mine = int(self.random.binomial(requests, share))
            self.counted[name] = (
                target + self._some(self.target, mine),
                stable + self._some(self.stable, requests - mine),
            )

    def _some(self, side: Side, requests: int) -> RequestTally:
        slow = int(self.random.binomial(requests, 0.05))
        failures = int(self.random.binomial(requests, side.failing))
        return RequestTally(requests, failures, {8: requests - slow, side.slowest_ms: slow})

    def look(self, **annotations: str) -> None:
        """One pass, as a new process would make it: from what the API server has."""
        readings = tuple(
            GatewayReading(
                name, timedelta(seconds=int((self.now - self.started[name]).total_seconds())), *both
            )
            for name, both in sorted(self.counted.items())
            if name not in self.silent
        )
        measured = (
            ReleaseMeasurements(readings, tuple(self.silent), self.answers, self.pods)
            if is_under_way(self.access)
            else ReleaseMeasurements()
        )
        plan = plan_release(self.access, measured, self.now)
        self.events += plan.events
        self.writes += plan.status != self.access.status.release
        stored = None if plan.status is None else ReleaseStatus.model_validate(plan.status.dump())
        self.access = with_release(self.access, stored)
        self.wait = plan.requeue_after

    def step(self) -> None:
        self.look()
        seconds = self.wait.total_seconds() if self.wait else 10.0
        self.traffic(seconds)
        self.now += timedelta(seconds=seconds)

    def run(self, seconds: float) -> None:
        end = self.now + timedelta(seconds=seconds)
        while self.now < end:
            self.step()

    def until_end(self, at_most: timedelta = timedelta(hours=1)) -> None:
        end = self.now + at_most
        self.step()
        while is_under_way(self.access) and self.now < end:
            self.step()

    def says(self, command: str) -> None:
        metadata = self.access.metadata.model_copy(update={"annotations": {RELEASE_ANNOTATION: command}})
        self.access = self.access.model_copy(update={"metadata": metadata})
        self.look()

    def told(self) -> list[str]:
        return [event.reason for event in self.events]


def test_a_good_target_takes_everything_step_by_step() -> None:
    world = World(a_release(checks=[ERRORS, LATENCY]), rate=4000)
    world.until_end()
    assert (world.status.phase, world.status.reason, share_in_effect(world.access)) == (
        "Promoted",
        "Promoted",
        100,
    )
    assert world.told() == ["ReleaseStarted", *["ReleaseStep"] * 4, "ReleasePromoted"]
    assert world.now - START < 6 * INTERVAL
    # Each step is judged by a sample of its own, which may use up less of the false alarms than the one before.
    assert world.status.window == 5
    # One write for each step, and one each for where the gateways' counters stand.
    assert world.writes <= 8


def test_failures_take_it_back_at_the_first_look_that_shows_them() -> None:
    world = World(a_release(), target=Side(failing=0.02))
    world.until_end()
    assert (world.status.phase, world.status.reason, world.status.step) == ("RolledBack", "CheckFailed", 1)
    assert share_in_effect(world.access) == 0
    assert world.told() == ["ReleaseStarted", "ReleaseRolledBack"]
    # 10 requests a second of which two in a hundred fail; 3,000 would not have been enough to pass.
    assert world.now - START < timedelta(minutes=4)


def test_failures_that_come_late_are_found_as_soon() -> None:
    """A long good past must excuse nothing."""
    world = World(a_release(steps=[10, 50]), rate=4000)
    world.run(INTERVAL.total_seconds() + 15)
    assert world.status.step == 2
    world.target.failing = 0.02
    broke = world.now
    world.until_end()
    assert world.status.phase == "RolledBack"
    assert world.now - broke <= timedelta(seconds=20)


def test_a_slower_target_is_taken_back() -> None:
    world = World(a_release(checks=[LATENCY]), target=Side(slowest_ms=24))
    world.until_end()
    assert (world.status.phase, world.status.step) == ("RolledBack", 1)
    assert "LatencyP99" in world.status.message


def test_a_target_within_the_ratio_passes() -> None:
    world = World(a_release(checks=[LATENCY]), target=Side(slowest_ms=21), rate=4000)
    world.until_end()
    assert world.status.phase == "Promoted"


def test_what_fails_everywhere_rolls_nothing_back_and_lets_nothing_pass() -> None:
    world = World(a_release(), target=Side(failing=0.02), stable=Side(failing=0.02), rate=4000)
    world.until_end(timedelta(minutes=20))
    assert (world.status.phase, world.status.step, world.status.reason) == ("Progressing", 1, "Undecided")
    world.target.failing = world.stable.failing = 0.0
    world.until_end(timedelta(hours=20))
    assert world.status.phase == "Promoted"


def test_too_few_requests_neither_pass_nor_fail() -> None:
    world = World(a_release(), rate=1.0)
    world.until_end(timedelta(minutes=30))
    assert (world.status.phase, world.status.step, world.status.reason) == (
        "Progressing",
        1,
        "WaitingForRequests",
    )
    assert "it takes 3000 requests to pass" in world.status.message
    world.rate = 10_000
    world.until_end()
    assert world.status.phase == "Promoted"


def test_a_silent_gateway_holds_it_and_never_promotes() -> None:
    world = World(a_release(), rate=4000, silent=["gateway-2"])
    world.until_end(timedelta(minutes=30))
    assert (world.status.phase, world.status.step, world.status.reason) == (
        "Progressing",
        1,
        "WaitingForMeasurements",
    )
    assert "gateway-2" in world.status.message
    world.silent = []
    world.until_end()
    assert world.status.phase == "Promoted"


def test_without_any_gateway_it_waits() -> None:
    world = World(a_release())
    world.counted = {}
    world.until_end(timedelta(minutes=30))
    assert (world.status.step, world.status.reason) == (1, "WaitingForMeasurements")


def test_a_gateway_that_restarts_costs_no_verdict() -> None:
    world = World(a_release(steps=[50]), rate=400)
    world.run(60)
    world.counted["gateway-1"] = (RequestTally(), RequestTally())
    world.started["gateway-1"] = world.now
    world.until_end()
    assert world.status.phase == "Promoted"


def test_what_was_counted_before_the_release_is_not_its_own() -> None:
    """The target of this world has failed 180 times before."""
    world = World(a_release(), rate=4000)
    world.until_end()
    assert world.status.phase == "Promoted"


def test_pause_holds_and_judges_on_and_resume_goes_on() -> None:
    world = World(a_release(steps=[10, 50]), rate=4000)
    world.step()
    world.says("pause")
    world.run(600)
    assert (world.status.phase, world.status.step) == ("Paused", 1)
    world.says("resume")
    world.until_end()
    assert world.status.phase == "Promoted"


def test_a_paused_release_is_rolled_back_too() -> None:
    world = World(a_release(steps=[10, 50], says="pause"), rate=4000, target=Side(failing=0.02))
    world.until_end()
    assert world.status.phase == "RolledBack"


def test_promote_and_abort_act_once_and_not_on_the_next_release() -> None:
    world = World(a_release())
    world.step()
    world.says("promote")
    assert (world.status.phase, share_in_effect(world.access)) == ("Promoted", 100)
    world.look()
    changed = a_release(steps=[2, 100], says="promote")
    world.access = changed.model_copy(update={"status": world.access.status})
    assert share_in_effect(world.access) == 0
    world.run(30)
    assert (world.status.phase, world.status.weight) == ("Progressing", 2)
    world.says("abort")
    assert (world.status.phase, world.status.reason, share_in_effect(world.access)) == (
        "RolledBack",
        "Aborted",
        0,
    )


def test_a_promoted_target_can_be_aborted_and_restarted() -> None:
    world = World(a_release(), rate=4000)
    world.until_end()
    world.says("abort")
    assert world.status.phase == "RolledBack"
    world.says("restart")
    assert (world.status.phase, world.status.step, share_in_effect(world.access)) == ("Progressing", 1, 1)
    world.until_end()
    assert world.status.phase == "Promoted"


def test_an_ended_release_costs_no_write() -> None:
    world = World(a_release(), rate=4000)
    world.until_end()
    before = world.writes
    world.run(3600)
    assert world.writes == before
    assert world.wait is None


def test_on_failure_pause_keeps_the_share_and_waits_for_a_person() -> None:
    world = World(a_release(onFailure="Pause"), target=Side(failing=0.02), rate=4000)
    world.run(1200)
    assert (world.status.phase, world.status.reason, share_in_effect(world.access)) == (
        "Paused",
        "CheckFailed",
        1,
    )
    assert world.told() == ["ReleaseStarted", "ReleaseCheckFailed"]
    world.target.failing = 0.0
    world.says("resume")
    world.until_end()
    assert world.status.phase == "Promoted"


QUERY = "sum(rate(clicks_total[5m]))"


@pytest.mark.parametrize(
    ("value", "phase", "step"),
    [
        (0.5, "Promoted", 5),
        (2.0, "RolledBack", 1),
        (None, "Progressing", 1),
        (float("nan"), "Progressing", 1),
    ],
)
def test_a_query_is_judged_at_the_end_of_the_interval(value: float | None, phase: str, step: int) -> None:
    world = World(a_release(checks=[{"prometheus": QUERY, "max": "1.0"}]), answers={QUERY: value})
    world.step()
    assert list_due_queries(world.access, world.now) == ()
    assert list_due_queries(world.access, START + INTERVAL) == (QUERY,)
    world.until_end(timedelta(minutes=30))
    assert (world.status.phase, world.status.step) == (phase, step)


def test_good_targets_are_seldom_taken_back() -> None:
    """A hundred releases of targets that fail exactly as often as they may: at most one in a thousand goes back by chance."""
    phases = []
    for seed in range(100):
        world = World(a_release(steps=[50], interval="20s"), target=Side(failing=0.001), rate=2000)
        world.random = np.random.default_rng(seed)
        world.until_end(timedelta(minutes=5))
        phases.append(world.status.phase)
    assert "RolledBack" not in phases


def test_a_target_without_a_pod_is_never_promoted_however_much_it_has_answered() -> None:
    world = World(a_release(steps=[50]), rate=4000)
    world.run(60)
    world.pods = 0
    world.run(600)
    assert (world.status.phase, world.status.step, world.status.reason) == (
        "Progressing",
        1,
        "TargetNotReady",
    )
    world.pods = 1
    world.until_end()
    assert world.status.phase == "Promoted"


def test_a_step_that_is_held_does_not_excuse_what_comes_late() -> None:
    """It waits a day for Prometheus; then one request in twenty fails."""
    checks = [ERRORS, {"prometheus": QUERY, "max": "1.0"}]
    world = World(a_release(checks=checks, steps=[50, 100]), rate=200, answers={QUERY: None})
    world.run(timedelta(hours=6).total_seconds())
    assert (world.status.phase, world.status.step) == ("Progressing", 1)
    world.target.failing = 0.05
    broke = world.now
    world.until_end()
    assert world.status.phase == "RolledBack"
    assert world.now - broke <= timedelta(seconds=30)


@pytest.mark.parametrize("says", [None, "pause"])
def test_a_release_without_traffic_costs_no_writes(says: str | None) -> None:
    world = World(a_release(says=says), rate=0.0)
    world.run(300)
    before = world.writes
    world.run(3600)
    assert world.writes == before
    assert world.wait is not None
    assert world.wait >= timedelta(seconds=1)


def test_taking_the_annotation_away_resumes_only_what_it_paused() -> None:
    world = World(a_release(onFailure="Pause", steps=[50]), target=Side(failing=0.05))
    world.says("resume")
    world.run(300)
    assert (world.status.phase, world.status.reason) == ("Paused", "CheckFailed")
    world.says("")
    world.run(10)
    assert (world.status.phase, world.status.reason) == ("Paused", "CheckFailed")
    world.says("pause")
    world.says("")
    assert (world.status.phase, world.status.reason) == ("Paused", "CheckFailed")
    world = World(a_release(says="pause"))
    world.look()
    world.says("")
    assert world.status.phase == "Progressing"


def test_requests_without_an_answer_are_slow_ones() -> None:
    """LatencyP99 alone: three in ten are never answered, the others as fast as ever."""
    sample = ReleaseSample(
        RequestTally(10_000, 3_000, {5: 7_000}, 3_000), RequestTally(10_000, 0, {5: 10_000})
    )
    release = a_release(checks=[LATENCY]).spec.release
    said = judge_checks(release.checks if release else (), Evidence(sample, 1, {}, queried=True), ())
    assert [check.verdict for check in said] == ["Failed"]


def test_gateways_that_are_gone_leave_the_status() -> None:
    world = World(a_release(interval="24h"), rate=400)
    for number in range(300):
        world.run(10)
        world.counted = {f"gateway-{number}": (RequestTally(), RequestTally())}
        world.started = {f"gateway-{number}": world.now}
    world.run(10)
    assert [base.gateway for base in world.status.gateways] == ["gateway-299"]
    many = {f"many-{number:03}": (RequestTally(), RequestTally()) for number in range(300)}
    world.counted, world.started = many, dict.fromkeys(many, world.now)
    world.run(10)
    assert len(world.status.gateways) == 256
    before = world.writes
    world.run(30)
    assert world.writes == before


def test_clocks_that_jump_neither_count_the_past_nor_lose_it() -> None:
    world = World(a_release(), rate=4000)
    world.run(30)
    for hours in (3, -6):
        for name in world.started:
            world.started[name] += timedelta(hours=hours)
        world.now += timedelta(hours=hours)
        world.run(30)
    assert world.status.phase == "Progressing"


def test_a_release_that_is_aborted_after_an_edit_stays_so() -> None:
    world = World(a_release(), rate=4000)
    world.until_end()
    edited = a_release(interval="5m")
    world.access = edited.model_copy(update={"status": world.access.status})
    world.look()
    world.says("abort")
    world.look()
    assert (world.status.phase, share_in_effect(world.access)) == ("RolledBack", 0)

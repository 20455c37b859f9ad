"""How far Inferences are from their measured capacity, from look to look."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from builders.allocator import NOW, a_member, observed
from tidegate.allocation.curves import MIN_FACTOR
from tidegate.allocation.errors import InvalidInputError
from tidegate.api.inference import Tier
from tidegate.planning.allocator.corrections import Corrections, update_corrections
from tidegate.planning.allocator.latency import measure_latencies
from tidegate.planning.allocator.observed_pool import PoolMember
from tidegate.planning.allocator.signals import Signal, Signals
from tidegate.planning.allocator.snapshot_builder import build_allocation_view
from tidegate.planning.allocator.spare_plan import LiveSpare, PlannedSpare

LOOK = timedelta(seconds=30)
CAPACITY = {"requestsPerSecond": "100"}
SLO = {"latencyP99": "30ms"}
SLOW_S = 0.2


def ctr(held: int = 2, **more: Any) -> PoolMember:
    return a_member("ctr", held, **{"capacity": CAPACITY, "slo": SLO, **more})


class Looks:
    """A pool that is looked at every thirty seconds."""

    def __init__(self, window: timedelta = timedelta()) -> None:
        self.known: Corrections = {}
        self.now = NOW
        self.window = window

    def sees(
        self,
        member: PoolMember,
        *spares: LiveSpare,
        offered: float = 150.0,
        p99_s: float = SLOW_S,
        old: bool = False,
    ) -> float:
        """The factor after one more look, at which these requests were all served so late."""
        read = self.now if old else self.now + LOOK
        self.now += LOOK
        signal = Signal(offered, read, served_per_s=offered, latency_p99_s=p99_s)
        seen = observed(
            member, now=self.now, signals=Signals({member.key: signal}, "", self.window), live_spares=spares
        )
        self.known = update_corrections(self.known, seen)
        return self.known[member.key].correction.factor


def test_answers_that_are_late_at_less_than_was_measured_lower_it_look_by_look() -> None:
    looks = Looks()
    factors = [looks.sees(ctr()) for _ in range(40)]
    assert factors[0] == 1.0
    assert factors[1] == pytest.approx(0.95)
    assert sorted(factors, reverse=True) == factors
    assert factors[-1] >= MIN_FACTOR


def test_a_warm_spare_serves_nothing_and_is_no_part_of_what_was_promised() -> None:
    """One replica gets more than it bears; with its spare it would have been late at less than two were measured to bear."""
    looks = Looks()
    assert [looks.sees(ctr(1, spares=1)) for _ in range(3)] == [1.0, 1.0, 1.0]
    promoted = {"allocation": {"replicas": 2, "spares": 0, "decision": "d", "epoch": 1}}
    assert looks.sees(ctr(1, spares=1, status=promoted)) == 1.0  # another number than at the last look
    assert looks.sees(ctr(1, spares=1, status=promoted)) < 1


def test_it_is_what_is_planned_with() -> None:
    looks = Looks()
    for _ in range(3):
        factor = looks.sees(ctr())
    assert factor < 1
    seen = observed(ctr(), corrections={key: each.correction for key, each in looks.known.items()})
    (inference,) = build_allocation_view(seen).snapshot.inferences
    assert inference.placements[0].curve.rate_at(1) == pytest.approx(100 * factor)


def test_a_capacity_beyond_all_measure_leaves_out_its_inference_and_no_other() -> None:
    rate = {"requestsPerSecond": "999999999999"}
    beyond = a_member("beyond", 2, capacity=rate, slo=SLO)
    beyond = replace(beyond, claim=replace(beyond.claim, relative_capacity=2.0))
    with pytest.raises(InvalidInputError):
        _ = beyond.capacity_curve
    seen = observed(beyond, ctr(), signals=Signals({}, "", LOOK))

    assert list(update_corrections({}, seen)) == [ctr().key]
    assert list(measure_latencies(seen)) == [str(ctr().key)]
    view = build_allocation_view(seen)
    assert [model.key for model in view.snapshot.inferences] == [str(ctr().key)]
    assert list(view.excluded) == [beyond.key]


def test_what_starts_or_goes_says_nothing() -> None:
    looks = Looks()
    looks.sees(ctr())
    assert looks.sees(ctr(3, ready=2)) == 1.0
    assert looks.sees(ctr(3)) == 1.0, "the third was not there before"
    assert looks.sees(ctr(3, pods=4)) == 1.0
    assert looks.sees(ctr(3)) == 1.0
    assert looks.sees(ctr(3)) < 1.0


def test_a_look_at_more_time_than_that_counts_when_none_of_it_is_of_before_and_none_twice() -> None:
    looks = Looks(window=timedelta(seconds=60))
    looks.sees(ctr())
    factors = [looks.sees(ctr(5), offered=450.0) for _ in range(6)]
    assert factors[:2] == [1.0, 1.0], "the minute is of before the three new ones answered"
    assert factors[2] < 1.0
    assert factors[3] >= factors[2], "half of the minute was counted already"
    assert factors[4] < factors[3]


def test_what_a_shared_spare_answers_is_not_learned_as_the_capacity_of_replicas() -> None:
    alone, helped, other = Looks(), Looks(), Looks()
    spare = LiveSpare(PlannedSpare("spare-cpu-a-0", "ads", 0, "node-1", 1, ("ctr", "cvr")), {"ctr": 1})
    loading = replace(spare, serving={"cvr": 1})
    for _ in range(20):
        rise = alone.sees(ctr(1), offered=180.0, p99_s=0.01)
        assert helped.sees(ctr(1), spare, offered=180.0, p99_s=0.01) == 1.0
        # Not loaded yet, it serves nothing.
        assert other.sees(ctr(1), loading, offered=180.0, p99_s=0.01) == rise
    assert rise > 1.4
    # Late answers below what was measured still show that the replicas serve less.
    assert helped.sees(ctr(1), spare, offered=90.0) < 1.0


def test_little_load_that_is_late_says_nothing_of_what_is_served_at_most() -> None:
    looks = Looks()
    assert [looks.sees(ctr(), offered=5.0) for _ in range(5)] == [1.0] * 5


def test_the_same_look_counts_once() -> None:
    looks = Looks()
    looks.sees(ctr())
    once = looks.sees(ctr())
    assert once <= looks.sees(ctr(), old=True) < 1.0


@pytest.mark.parametrize(
    "other",
    [ctr(capacity={"requestsPerSecond": "120"}), ctr(slices=2), ctr(slo={"latencyP99": "20ms"})],
    ids=["capacity", "slices", "slo"],
)
def test_something_else_that_was_measured_starts_over(other: PoolMember) -> None:
    looks = Looks()
    looks.sees(ctr())
    assert looks.sees(ctr()) < 1.0
    assert looks.sees(other) == 1.0


def test_nobody_else_is_corrected() -> None:
    looks = Looks()
    others = (
        a_member("unmeasured", slo=SLO),
        a_member("batch", tier=Tier.OFFLINE, capacity=CAPACITY),
        replace(ctr(), inference=a_member("near", tier=Tier.NEARLINE, capacity=CAPACITY).inference),
    )
    assert update_corrections(looks.known, observed(*others)) == {}


def test_an_inference_that_left_the_pool_is_forgotten() -> None:
    looks = Looks()
    looks.sees(ctr())
    assert update_corrections(looks.known, observed(now=looks.now)) == {}

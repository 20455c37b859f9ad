"""ComputeOverrides: what they say of themselves and of their targets, and when they end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from builders.compute_override import a_compute_override
from builders.compute_pool import a_compute_pool
from builders.inference import an_inference
from tidegate.api.compute_override import AUTHOR_ANNOTATION, ComputeOverride
from tidegate.api.inference import Scaling
from tidegate.api.reasons import Reason
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pools.compute_override import OverrideObserved, plan_override
from tidegate.planning.pools.compute_pool import PoolObserved, plan_pool
from tidegate.planning.pools.overrides import END_MARGIN, bound_replicas, select_active
from tidegate.planning.pools.pool_slices import PoolSlices
from tidegate.resources.settings import ServingSettings

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
RANGE = Scaling(min_replicas=1, max_replicas=8)


def planned(override: ComputeOverride, now: datetime = NOON, **facts: bool) -> ReconcilePlan:
    return plan_override(
        OverrideObserved(override, now, facts.get("exists", True), facts.get("scaled", True))
    )


def ready(plan: ReconcilePlan) -> tuple[str, str]:
    conditions = plan.status["conditions"]
    assert isinstance(conditions, list)
    found = next(each for each in conditions if each["type"] == "Ready")
    return found["reason"], found["message"]


def test_one_in_force_says_what_it_does_whose_it_is_and_looks_again_at_its_end() -> None:
    override = a_compute_override(metadata={"annotations": {AUTHOR_ANNOTATION: "alice"}}, pin={"replicas": 6})
    plan = planned(override)
    assert ready(plan) == (
        Reason.OVERRIDE_IN_FORCE,
        "ComputeOverride sale by alice pins 6 replicas until 2026-01-02T00:00:00Z: the sale",
    )
    assert plan.requeue_after is not None
    assert timedelta(hours=12) < plan.requeue_after < timedelta(hours=12, seconds=1)


def test_at_its_end_it_has_ended() -> None:
    plan = planned(a_compute_override(pin={"replicas": 6}), NOON + timedelta(hours=12))
    assert ready(plan) == (
        Reason.OVERRIDE_EXPIRED,
        "it ended at 2026-01-02T00:00:00Z: delete it, or set a later spec.expiresAt, which extends it until "
        "2026-01-08T00:00:00Z at most",
    )
    assert plan.requeue_after is None


def test_after_seven_days_the_way_out_is_another_override_and_not_a_later_end() -> None:
    override = a_compute_override(expiresAt="2027-01-01T00:00:00Z", pin={"replicas": 6})
    assert "pins 6 replicas until 2026-01-08T00:00:00Z" in ready(planned(override))[1], "as it will end"
    reason, message = ready(planned(override, datetime(2026, 1, 8, tzinfo=UTC)))
    assert reason == Reason.OVERRIDE_EXPIRED
    assert message.startswith(
        "it ended at 2026-01-08T00:00:00Z, and an override lasts at most 7 days: delete it,"
    )
    assert "expiresAt" not in message


def test_an_inference_looks_again_when_its_first_override_ends() -> None:
    overrides = (
        a_compute_override("later", floor={"replicas": 2}),
        a_compute_override("first", expiresAt="2026-01-01T18:00:00Z", pin={"replicas": 3}),
    )
    inference = an_inference(scaling={"minReplicas": 1, "maxReplicas": 8}, placement={"pool": "cpu-a"})
    plan = plan_inference(InferenceObserved(inference, NOON, epoch=1, overrides=overrides), SETTINGS)
    assert plan.requeue_after == timedelta(hours=6) + END_MARGIN


def test_no_override_lasts_longer_than_seven_days_whatever_it_says() -> None:
    override = a_compute_override(expiresAt="2027-01-01T00:00:00Z", hold=True)
    assert override.end_time == datetime(2026, 1, 8, tzinfo=UTC)
    assert select_active([override], datetime(2026, 1, 8, tzinfo=UTC)) == ()
    assert select_active([override], datetime(2026, 1, 7, 23, 59, tzinfo=UTC)) == (override,)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [({"exists": False}, Reason.TARGET_NOT_FOUND), ({"scaled": False}, Reason.OVERRIDE_WITHOUT_EFFECT)],
)
def test_one_that_decides_nothing_says_why(facts: dict[str, bool], reason: Reason) -> None:
    assert ready(planned(a_compute_override(hold=True), **facts))[0] == reason


def test_floors_add_up_to_the_highest_and_the_newest_pin_counts_before_them() -> None:
    floors = [a_compute_override(name, floor={"replicas": count}) for name, count in (("a", 5), ("b", 3))]
    assert bound_replicas(RANGE, 2, floors).floor == 5
    pins = [a_compute_override(name, pin={"replicas": count}) for name, count in (("c", 7), ("d", 2))]
    found = bound_replicas(RANGE, 2, [*floors, *pins])
    assert (found.floor, found.ceiling, found.floor_source) == (2, 2, "ComputeOverride d")


def test_a_pool_says_that_it_is_held_until_it_is_not() -> None:
    held = a_compute_override(target={"kind": "ComputePool", "namespace": None, "name": "cpu-a"}, hold=True)
    plan = plan_pool(PoolObserved(a_compute_pool(), NOON, PoolSlices(), (held,)))
    assert any(event.reason == Reason.OVERRIDDEN for event in plan.events)
    assert plan.requeue_after is not None
    after = plan_pool(PoolObserved(a_compute_pool(status=dict(plan.status)), NOON, PoolSlices()))
    conditions = after.status["conditions"]
    assert isinstance(conditions, list)
    assert "OverrideActive" not in [each["type"] for each in conditions]
    assert [event.reason for event in after.events] == ["OverrideEnded"]

"""Conditions: the transition time moves with the status alone, and what others said stays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.conditions import (
    MAX_MESSAGE_LENGTH,
    Condition,
    ConditionStatus,
    ConditionType,
    ObservedCondition,
    find_condition,
    is_condition_true,
    merge_conditions,
    select_own_conditions,
)
from tidegate.api.inference import InferenceStatus
from tidegate.api.reasons import Reason

MORNING = datetime(2026, 1, 1, 8, tzinfo=UTC)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
FOREIGN = {
    "type": "PolicyAccepted",
    "status": "True",
    "lastTransitionTime": "2025-01-01T00:00:00Z",
    "extra": 1,
}


def ready(
    status: ConditionStatus = ConditionStatus.TRUE, message: str = "", generation: int = 1
) -> Condition:
    return Condition(ConditionType.READY, status, Reason.ALL_REPLICAS_READY, message, generation)


def test_a_new_condition_starts_now() -> None:
    assert merge_conditions([], [ready(message="2 of 2")], NOON) == [
        {
            "type": "Ready",
            "status": "True",
            "reason": "AllReplicasReady",
            "message": "2 of 2",
            "observedGeneration": 1,
            "lastTransitionTime": "2026-01-01T12:00:00Z",
        }
    ]


def test_a_changed_message_does_not_move_the_transition_time() -> None:
    before = merge_conditions([], [ready(message="1 of 2")], MORNING)
    after = merge_conditions(before, [ready(message="2 of 2", generation=2)], NOON)
    assert (after[0]["message"], after[0]["observedGeneration"]) == ("2 of 2", 2)
    assert after[0]["lastTransitionTime"] == "2026-01-01T08:00:00Z"


def test_a_changed_status_moves_the_transition_time() -> None:
    before = merge_conditions([], [ready()], MORNING)
    after = merge_conditions(before, [ready(ConditionStatus.FALSE)], NOON)
    assert after[0]["lastTransitionTime"] == "2026-01-01T12:00:00Z"


def test_conditions_of_others_stay_as_they_are() -> None:
    merged = merge_conditions([FOREIGN], [ready()], NOON)
    assert merged[0] == FOREIGN
    assert [item["type"] for item in select_own_conditions(merged)] == ["Ready"]


def test_a_condition_read_from_a_status_is_merged_alike() -> None:
    before = merge_conditions([], [ready()], MORNING)
    status = InferenceStatus.model_validate({"conditions": before})
    assert isinstance(status.conditions[0], ObservedCondition)
    assert merge_conditions(status.conditions, [ready()], NOON) == before


def test_a_forged_condition_without_time_gets_one() -> None:
    forged: dict[str, Any] = {"type": "Ready", "status": "True"}
    assert merge_conditions([forged], [ready()], NOON)[0]["lastTransitionTime"] == "2026-01-01T12:00:00Z"


def test_a_message_beyond_reading_is_cut() -> None:
    message = merge_conditions([], [ready(message="x" * 100_000)], NOON)[0]["message"]
    assert len(message) == MAX_MESSAGE_LENGTH
    assert message.endswith("…")


CONDITIONS = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from(ConditionType),
        status=st.sampled_from(ConditionStatus),
        reason=st.sampled_from(Reason),
        message=st.text(max_size=20),
        observed_generation=st.integers(0, 5),
    ),
    unique_by=lambda condition: condition.type,
)


@given(CONDITIONS, CONDITIONS)
def test_merging_again_changes_nothing(first: list[Condition], second: list[Condition]) -> None:
    """A settled object costs no write: later merges of the same conditions give the same list, order included."""
    merged = merge_conditions(merge_conditions([FOREIGN], first, MORNING), second, NOON)
    assert merge_conditions(merged, second, NOON + timedelta(hours=1)) == merged
    assert merged[0] == FOREIGN
    assert len({item["type"] for item in merged}) == len(merged)


@given(CONDITIONS)
def test_what_was_said_is_found(conditions: list[Condition]) -> None:
    merged = merge_conditions([], conditions, NOON)
    for condition in conditions:
        found = find_condition(merged, condition.type)
        assert found is not None
        assert found["reason"] == condition.reason.value


def test_true_counts_only_for_the_generation_that_was_asked_for() -> None:
    conditions = merge_conditions([], [ready(generation=2)], NOON)
    assert is_condition_true(conditions, ConditionType.READY, generation=2)
    assert not is_condition_true(conditions, ConditionType.READY, generation=3)
    assert not is_condition_true(conditions, ConditionType.STALLED)

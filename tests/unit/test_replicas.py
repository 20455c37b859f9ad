"""How many replicas an Inference is to have, whoever decided it."""

from __future__ import annotations

from typing import Any

import pytest

from builders.inference import an_inference
from tidegate.planning.inference.replicas import resolve_replicas

RANGE = {"minReplicas": 2, "maxReplicas": 6}


@pytest.mark.parametrize(
    ("decided", "running", "replicas"),
    [
        pytest.param(None, None, 2, id="nothing-decided-nothing-runs"),
        pytest.param(None, 4, 4, id="nothing-decided-yet"),
        pytest.param(None, 9, 6, id="more-than-the-range"),
        pytest.param(None, 1, 2, id="fewer-than-the-range"),
        pytest.param(3, 5, 3, id="decided"),
        pytest.param(9, 5, 6, id="decided-before-the-range-changed"),
    ],
)
def test_a_range_is_settled_by_the_allocator(decided: int | None, running: int | None, replicas: int) -> None:
    status: dict[str, Any] = {}
    if decided is not None:
        status = {"allocation": {"replicas": decided, "decision": "d", "epoch": 1}}
    inference = an_inference(placement={"pool": "cpu-a"}, scaling=RANGE, status=status)
    assert resolve_replicas(inference, running).spec.replicas == replicas
    assert inference.spec.replicas == 1


def test_a_fixed_number_is_the_users_own() -> None:
    status = {"allocation": {"replicas": 5, "decision": "d", "epoch": 1}}
    assert resolve_replicas(an_inference(replicas=3, status=status), 1).spec.replicas == 3

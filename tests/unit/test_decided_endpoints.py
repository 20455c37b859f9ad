"""Whose decision it is that a pod is there: said of Inferences that an allocator decides about, and of no others."""

from __future__ import annotations

from typing import Any

import pytest

from builders.inference import an_inference
from builders.pods import a_pod
from tidegate.planning.access.backends import build_inference_backend

DECIDED = {"allocation": {"replicas": 2, "decision": "gpu-a-7", "epoch": 3}}
SCALED: dict[str, Any] = {
    "placement": {"pool": "gpu-a"},
    "scaling": {"minReplicas": 1, "maxReplicas": 4},
    "replicas": None,
}


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        pytest.param(SCALED, DECIDED, "gpu-a-7", id="decided"),
        pytest.param(SCALED, {}, "", id="not-decided-yet"),
        pytest.param({"replicas": 2}, DECIDED, "", id="no-longer-shared-out"),
    ],
)
def test_an_endpoint_says_by_which_decision_it_is_there(
    spec: dict[str, Any], status: dict[str, Any], expected: str
) -> None:
    backend = build_inference_backend(
        an_inference("ctr", status=status, **spec), [a_pod("ctr-0", source="s"), a_pod("ctr-1", source="s")]
    )
    assert [pod.decision for pod in backend.endpoints] == [expected, expected]

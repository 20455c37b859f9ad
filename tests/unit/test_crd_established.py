"""How the demo tells that the API server serves a custom resource."""

from __future__ import annotations

import pytest

from tidegate_localcluster.demo.kubectl import is_established

NAMED = {"type": "NamesAccepted", "status": "True"}


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({}, False),
        # As the API server shows one that it has just made.
        ({"status": {"conditions": None, "storedVersions": ["v1alpha1"]}}, False),
        ({"status": {"conditions": [NAMED, {"type": "Established", "status": "False"}]}}, False),
        ({"status": {"conditions": [NAMED, {"type": "Established", "status": "True"}]}}, True),
    ],
)
def test_a_definition_without_conditions_is_waited_for(definition: dict[str, object], expected: bool) -> None:
    assert is_established(definition) is expected

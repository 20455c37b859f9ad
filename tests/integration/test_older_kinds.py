"""An installation that goes back to an older version: what becomes of objects with fields that it does not know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from builders.inference import inference_body
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl
from tidegate.api.inference import Inference
from tidegate.errors import InvalidSpecError

pytestmark = pytest.mark.usefixtures("crds")

CRD = "inferences.tidegate.io"
LATER = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/laterField"


@pytest.fixture
def newer(kubectl: Kubectl, namespace: str) -> Iterator[Any]:
    """An Inference with a field of a later version, in a cluster that knows it."""
    kubectl("patch", "crd", CRD, "--type=json", "-p", _patch("add", {"type": "string"}))
    body = {**inference_body(laterField="x"), "metadata": {"name": "double"}}
    sent = json.dumps(body)

    def made() -> bool:
        return kubectl.run("apply", "-n", namespace, "--filename=-", stdin=sent).returncode == 0

    wait_until(made, what="the API server knows the later field")
    yield kubectl.json("get", "inference/double", "-n", namespace)
    # Where the test has not taken it out itself.
    kubectl.run("patch", "crd", CRD, "--type=json", "-p", _patch("remove"))


def _patch(operation: str, value: object = None) -> str:
    return json.dumps([{"op": operation, "path": LATER, **({} if value is None else {"value": value})}])


def test_a_field_of_a_later_version_makes_an_object_unreadable_until_the_older_kinds_are_back(
    kubectl: Kubectl, namespace: str, newer: Any
) -> None:
    assert newer["spec"]["laterField"] == "x"
    with pytest.raises(InvalidSpecError, match="laterField"):
        Inference.parse(newer)

    kubectl("patch", "crd", CRD, "--type=json", "-p", _patch("remove"))

    def found() -> Any:
        return kubectl.json("get", "inference/double", "-n", namespace)

    wait_until(lambda: "laterField" not in found()["spec"], what="the API server leaves the field out")
    assert Inference.parse(found()).metadata.name == "double"

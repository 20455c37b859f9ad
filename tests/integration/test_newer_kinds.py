"""An older xDS server beside newer kinds, on a real API server: it goes on routing what it understands, and says what it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl
from fixtures.xds_process import Stream, Xds, fresh, xds
from tidegate.xds.resources import TypeUrl

pytestmark = [pytest.mark.usefixtures("crds"), pytest.mark.integration]

_SCHEMA: Final = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties"
_ROUTE: Final = f"{_SCHEMA}/routes/items/properties"
_TEXT: Final = {"type": "string"}


def _patch(kubectl: Kubectl, plural: str, *changes: Mapping[str, Any]) -> None:
    kubectl("patch", "crd", f"{plural}.tidegate.io", "--type=json", "-p", json.dumps(changes))


@pytest.fixture(scope="module")
def newer(kubectl: Kubectl, crds: None) -> Iterator[None]:
    """Kinds of a later version: a field of a route, one of its match, and a tier more."""
    del crds
    added = [f"{_ROUTE}/laterField", f"{_ROUTE}/match/properties/country"]
    tiers = kubectl.json("get", "crd", "inferences.tidegate.io")["spec"]["versions"][0]["schema"]
    tier = tiers["openAPIV3Schema"]["properties"]["spec"]["properties"]["tier"]
    _patch(kubectl, "modelaccesses", *({"op": "add", "path": path, "value": _TEXT} for path in added))
    _patch(
        kubectl,
        "inferences",
        {"op": "add", "path": f"{_SCHEMA}/tier/enum", "value": [*tier["enum"], "later"]},
    )
    yield
    _patch(kubectl, "modelaccesses", *({"op": "remove", "path": path} for path in added))
    _patch(kubectl, "inferences", {"op": "add", "path": f"{_SCHEMA}/tier/enum", "value": tier["enum"]})


def _applied(kubectl: Kubectl, body: str) -> None:
    """The API server knows a changed kind a moment after it took it."""

    def taken() -> bool:
        done = kubectl.run("apply", "--validate=strict", "-f", "-", stdin=body)
        return done.returncode == 0

    wait_until(taken, what="the API server takes the later field")


def _access(name: str, namespace: str, route: str, **fields: Any) -> str:
    """One with a route of that name, by which its state can be told."""
    return fresh(model_access_body(name, namespace), routes=[{**a_route(route, "model"), **fields}])


def _counted(running: Xds, kind: str) -> Mapping[str, int]:
    found = re.findall(
        rf'tidegate_xds_objects_not_understood{{kind="{kind}",read="(\w+)"}} (\d+)', running.metrics()
    )
    return {read: int(count) for read, count in found if int(count)}


def _routes(scopes: Mapping[str, Any], namespace: str, access: str, route: str) -> bool:
    name = f"access/{namespace}/{access}"
    return f"{name}/{route}/grpc" in json.dumps(scopes.get(name, {}))


NEWER_MATCH: Final = {"headers": [{"name": "segment", "exact": "a"}], "country": "de"}


def test_an_older_server_routes_what_it_understands_and_goes_on_with_what_it_had(
    kubectl: Kubectl, kubeconfig: Path, newer: None, namespace: str, tmp_path: Path
) -> None:
    del newer
    for name in ("part", "kept"):
        kubectl("apply", "-f", "-", stdin=_access(name, namespace, "one"))

    def has(access: str, route: str) -> Callable[[Mapping[str, Any]], bool]:
        return lambda found: _routes(found, namespace, access, route)

    with xds(kubeconfig, tmp_path / "warm") as (running, channel):
        scopes = Stream(channel, TypeUrl.SCOPE)
        assert all(has(access, "one")(found) for found in [scopes.next()] for access in ("part", "kept"))

        _applied(kubectl, _access("part", namespace, "two", laterField="x"))
        scopes.until("the newer field is left out", has("part", "two"))
        wait_until(
            lambda: _counted(running, "ModelAccess") == {"in_part": 1},
            what="it is said that one is read in part",
        )

        _applied(kubectl, _access("kept", namespace, "two", match=NEWER_MATCH))
        wait_until(
            lambda: _counted(running, "ModelAccess") == {"in_part": 1, "as_before": 1},
            what="it is said that one is as before",
        )
        kubectl("apply", "-f", "-", stdin=_access("last", namespace, "one"))
        assert has("kept", "one")(scopes.until("the last one is there", has("last", "one")))
        assert "country" in running.log.read_text()

    # One that starts now never read what the other goes on with: a condition that it does not know stays shut,
    # and a value that it does not know is not guessed.
    _applied(kubectl, fresh(inference_body("three", namespace), tier="later"))
    with xds(kubeconfig, tmp_path / "cold") as (running, channel):
        found = Stream(channel, TypeUrl.SCOPE).until("routes", has("last", "one"))
        assert has("part", "two")(found)
        assert f"access/{namespace}/kept" not in found
        wait_until(
            lambda: _counted(running, "ModelAccess") == {"in_part": 1, "not_at_all": 1},
            what="it is said that one is not read at all",
        )
        wait_until(
            lambda: _counted(running, "Inference") == {"not_at_all": 1},
            what="an Inference that cannot be read is counted",
        )
        assert "spec.tier" in running.log.read_text()

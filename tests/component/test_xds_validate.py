"""Envoy's own validation of what we render: every golden fleet, and fleets as chance makes them."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings

from builders.any_fleet import SECRETS, any_fleet, fuzzed_access
from builders.fleet import a_backend, a_fleet, credentials
from fixtures.envoy import envoy_binary
from tidegate.routing import protos
from tidegate.routing.bootstrap import BootstrapSettings, build_bootstrap, render_bootstrap
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.routing.fleet import FleetState
from tidegate.routing.planner import plan_routing
from tidegate.xds.resources import Snapshot, TypeUrl
from tidegate.xds.snapshot_builder import SnapshotBuilder


def verdict(config: Path) -> str:
    """Empty if Envoy takes the configuration; else its words."""
    done = subprocess.run(
        [
            str(envoy_binary()),
            *("--mode", "validate"),
            *("-c", str(config)),
            *("--service-node", "validate"),
            *("-l", "error"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def as_static(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as one file: routes inside the listener, clusters that still ask for endpoints by EDS."""
    plain = {
        kind: [described(resource.body) for resource in snapshot.resources[kind].values()] for kind in TypeUrl
    }
    (listener,) = plain[TypeUrl.LISTENER]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["scoped_routes"].pop("scoped_rds")
    manager["scoped_routes"]["scoped_route_configurations_list"] = {
        "scoped_route_configurations": plain[TypeUrl.SCOPE]
    }
    config = build_bootstrap(BootstrapSettings(metrics_port=None))
    static: dict[str, Any] = {"listeners": [listener], "clusters": plain[TypeUrl.CLUSTER]}
    static["clusters"] += config["static_resources"]["clusters"]  # type: ignore[index]
    return {**config, "static_resources": static}


def described(body: bytes) -> dict[str, Any]:
    """A resource as JSON, nothing redacted, without the type that only an Any has."""
    any_ = protos.decode("google.protobuf.Any", body)
    resource: dict[str, Any] = json_format.MessageToDict(any_, preserving_proto_field_name=True)
    return {name: value for name, value in resource.items() if name != "@type"}


def validate(snapshot: Snapshot) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(as_static(snapshot), file)
        file.flush()
        return verdict(Path(file.name))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(any_fleet())
def test_envoy_takes_every_fleet(fleet: FleetState) -> None:
    assert (
        validate(SnapshotBuilder(ListenerSettings(access_log=True)).build_snapshot(plan_routing(fleet))) == ""
    )


def test_envoy_takes_a_sample_of_fuzzed_accesses_in_one_configuration() -> None:
    random = Random(7)
    backends = [
        a_backend(name, "10.0.0.1", namespace=namespace) for namespace in ("ads", "shop") for name in "abcd"
    ]
    accesses = [fuzzed_access(random, f"a{number}") for number in range(300)]
    result = plan_routing(a_fleet(*accesses, *backends, credentials(SECRETS)))
    assert validate(SnapshotBuilder(ListenerSettings()).build_snapshot(result)) == ""


@pytest.mark.parametrize("metrics_port", [9902, None])
def test_envoy_takes_the_bootstrap(tmp_path: Path, metrics_port: int | None) -> None:
    file = tmp_path / "bootstrap.yaml"
    file.write_text(render_bootstrap(BootstrapSettings(metrics_port=metrics_port)))
    assert yaml.safe_load(file.read_text())["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    assert verdict(file) == ""

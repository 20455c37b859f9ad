"""The routing as documents: a fleet in, what its users are told and what Envoy is sent out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.golden import CheckGolden
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing import protos
from tidegate.routing.bootstrap import BootstrapSettings, render_bootstrap
from tidegate.routing.credentials import CallerCredentials, ClientAuthority, SecretData
from tidegate.routing.envoy import listener
from tidegate.routing.envoy.tls import TlsSettings
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint, FleetState
from tidegate.routing.planner import RoutingPlan, plan_routing
from tidegate.xds.resources import Snapshot, TypeUrl
from tidegate.xds.snapshot_builder import SnapshotBuilder

FOLDER = Path(__file__).parent / "routing"
CASES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def a_fleet_from(document: Mapping[str, Any]) -> FleetState:
    """The fleet that in.yaml describes."""
    backends = [
        Backend(
            BackendKey(BackendKind(entry.get("kind", "Inference")), entry["namespace"], entry["name"]),
            entry.get("model", entry["name"]),
            tuple(Endpoint(address) for address in entry.get("pods", ())),
            calls=tuple(entry.get("calls", ())),
            callers=tuple(entry.get("callers", ())),
        )
        for entry in document["backends"]
    ]
    return FleetState(
        accesses=[ModelAccess.parse(body) for body in document["accesses"]],
        backends={backend.key: backend for backend in backends},
        credentials=CallerCredentials(
            frozenset(document.get("namespaces", ())),
            {
                ObjectKey.parse(key): SecretData({name: text.encode() for name, text in entries.items()})
                for key, entries in document.get("secrets", {}).items()
            },
            client_authority=ClientAuthority(document.get("clientAuthority", "Absent")),
        ),
    )


def as_document(planned: RoutingPlan, snapshot: Snapshot) -> dict[str, Any]:
    """What out.yaml holds."""
    return {
        "status": {
            str(key): {
                "routes": [
                    {
                        "name": route.name,
                        "targets": [
                            f"{target.inference}: weight {target.weight}, {target.endpoints} endpoints"
                            for target in route.targets
                        ],
                        **({"mirror": [asdict(mirror) for mirror in route.mirrors]} if route.mirrors else {}),
                        **({"fallback": asdict(route.fallback)} if route.fallback else {}),
                        **({"parts": [asdict(part) for part in route.parts]} if route.parts else {}),
                    }
                    for route in access.routes
                ],
                "refusals": [
                    f"{refusal.reason} {refusal.part}: {refusal.message}" for refusal in access.refusals
                ],
            }
            for key, access in planned.accesses.items()
        },
        "envoy": {
            type_url.name.lower(): [
                described(resource.body) for _, resource in sorted(snapshot.resources[type_url].items())
            ]
            for type_url in (TypeUrl.CLUSTER, TypeUrl.ENDPOINT, TypeUrl.SCOPE)
        },
    }


def described(body: bytes) -> Any:
    """A resource in plain types, as YAML can show it; virtual hosts by name, since their order means nothing."""
    document = json.loads(json.dumps(protos.to_redacted_json(body), sort_keys=True))
    if "route_configuration" in document:
        document["route_configuration"].get("virtual_hosts", []).sort(key=lambda host: host["name"])
    return document


@pytest.mark.parametrize("case", CASES)
def test_a_fleet_becomes_routes(case: str, check_golden: CheckGolden) -> None:
    fleet = a_fleet_from(yaml.safe_load((FOLDER / case / "in.yaml").read_text()))
    planned = plan_routing(fleet)
    snapshot = SnapshotBuilder(listener.ListenerSettings()).build_snapshot(planned)
    text = yaml.safe_dump(as_document(planned, snapshot), sort_keys=False, width=110, allow_unicode=True)
    check_golden(FOLDER / case / "out.yaml", text)


def test_the_listener(check_golden: CheckGolden) -> None:
    tls = TlsSettings(("front", "back"), "clients")
    listeners = listener.encode_listeners(listener.ListenerSettings(access_log=True, tls=tls))
    assert list(listeners) == [listener.NAME, listener.TLS_NAME]
    plain, secured = (described(protos.encode_any(listener.TYPE, body)) for body in listeners.values())
    check_golden(FOLDER / "listener.yaml", yaml.safe_dump(plain, width=110))
    # All else is the same, so that a client is treated alike on both.
    for own in ("name", "address"):
        assert plain.pop(own) != secured.pop(own)
    (chain,) = secured["filter_chains"]
    apart = {name: chain.pop(name) for name in ("transport_socket", "transport_socket_connect_timeout")}
    assert plain == secured
    check_golden(FOLDER / "tls.yaml", yaml.safe_dump(apart, width=110))


def test_the_bootstrap(check_golden: CheckGolden) -> None:
    check_golden(FOLDER / "bootstrap.yaml", render_bootstrap(BootstrapSettings()))

"""Who reaches whom where the chart's NetworkPolicies are in force: each pair that has to, and those that must not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from fixtures.chart import PROCESSES, pod_of, rendered
from tidegate.resources.names import MANAGED_BY, MANAGER
from tidegate.resources.serving_pod import CONTROL_PORT, GRPC_PORT, HTTP_PORT
from tidegate.settings import ControlPlaneSettings

Policy = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Peer:
    """A pod; one without a namespace is an address outside of the cluster."""

    namespace: str
    labels: Mapping[str, str]


def allowed(policies: Iterable[Policy], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection is let out of one pod and into the other."""
    known = tuple(policies)
    return _passes(known, source, target, port, protocol, "egress") and _passes(
        known, target, source, port, protocol, "ingress"
    )


def _passes(
    policies: Iterable[Policy], bound: Peer, other: Peer, port: int, protocol: str, direction: str
) -> bool:
    """A pod that no policy selects is open; one that some do may do what any of them allows."""
    ours = [
        each
        for each in policies
        if each["metadata"]["namespace"] == bound.namespace
        and _matches(each["spec"]["podSelector"], bound.labels)
        and direction.capitalize() in each["spec"]["policyTypes"]
    ]
    side = "to" if direction == "egress" else "from"
    return not ours or any(
        _port_of(rule, port, protocol) and _peer_of(rule.get(side), other, each["metadata"]["namespace"])
        for each in ours
        for rule in each["spec"].get(direction) or ()
    )


def _port_of(rule: Mapping[str, Any], port: int, protocol: str) -> bool:
    return "ports" not in rule or {"protocol": protocol, "port": port} in rule["ports"]


def _peer_of(peers: Iterable[Mapping[str, Any]] | None, other: Peer, home: str) -> bool:
    return not peers or any(_is(peer, other, home) for peer in peers)


def _is(peer: Mapping[str, Any], other: Peer, home: str) -> bool:
    if "ipBlock" in peer:
        return not other.namespace
    if not other.namespace:
        return False
    namespaces = peer.get("namespaceSelector")
    # Every namespace has the label of its name.
    there = (
        other.namespace == home
        if namespaces is None
        else _matches(namespaces, {"kubernetes.io/metadata.name": other.namespace})
    )
    return there and _matches(peer.get("podSelector") or {}, other.labels)


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, f"not read here: {selector}"
    return (selector.get("matchLabels") or {}).items() <= labels.items()


pytestmark = [pytest.mark.integration]

_SETTINGS: Final = ControlPlaneSettings()
_API: Final = Peer("", {})
_SYSTEM: Final = "tidegate-system"


def _in(namespace: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}


_VALUES: Final = {
    "networkPolicy.enabled": True,
    "networkPolicy.clients": [_in("shop")],
    "networkPolicy.dashboard": [_in("front")],
    "networkPolicy.metrics": [_in("monitoring")],
    "networkPolicy.xdsClients": [_in("proxyless")],
    "networkPolicy.apiServer.cidrs": ["10.0.0.1/32"],
    "nodeAgent.enabled": True,
    "auth.jwks.allowedHosts": ["login.example.com:8443"],
    "controllers.prometheusUrl": "http://prometheus.monitoring.svc:9090",
}
_OTHERS: Final = {
    "model": Peer("ads", {MANAGED_BY: MANAGER}),
    "client": Peer("shop", {}),
    "browser": Peer("front", {}),
    "prometheus": Peer("monitoring", {}),
    "proxyless": Peer("proxyless", {}),
    "stranger": Peer("else", {}),
    "outside": _API,
}


@pytest.fixture(scope="module")
def world(helm: Any) -> tuple[list[Any], dict[str, Peer]]:
    """The policies, and everybody who is there."""
    objects = rendered(helm, _VALUES)
    peers = {name: Peer(_SYSTEM, pod_of(objects, name)["metadata"]["labels"]) for name in PROCESSES}
    agent = pod_of(objects, "node-agent", "DaemonSet")
    peers["node-agent"] = Peer(_SYSTEM, agent["metadata"]["labels"])
    peers["test"] = Peer(_SYSTEM, objects["Pod", "tidegate-test-ready"]["metadata"]["labels"])
    return [body for (kind, _), body in objects.items() if kind == "NetworkPolicy"], {**peers, **_OTHERS}


_GATEWAY: Final = 8080
_NEEDED: Final = {
    ("controllers", "outside", 443),
    ("controllers", "model", CONTROL_PORT),
    ("controllers", "xds", _SETTINGS.report_port),
    ("controllers", "gateway", _SETTINGS.gateway_metrics_port),
    ("controllers", "node-agent", _SETTINGS.node_agent_port),
    ("controllers", "prometheus", 9090),
    ("xds", "outside", 443),
    ("xds", "outside", 8443),
    ("xds", "gateway", _SETTINGS.gateway_metrics_port),
    ("web", "outside", 443),
    ("gateway", "xds", _SETTINGS.xds_port),
    ("gateway", "model", GRPC_PORT),
    ("gateway", "model", HTTP_PORT),
    ("client", "gateway", _GATEWAY),
    ("client", "gateway", 8443),
    ("browser", "web", _SETTINGS.web_port),
    ("proxyless", "xds", _SETTINGS.xds_port),
    *{
        ("prometheus", process, _SETTINGS.probe_port)
        for process in ("controllers", "xds", "web", "node-agent")
    },
    ("prometheus", "gateway", _SETTINGS.gateway_metrics_port),
    *{("test", process, _SETTINGS.probe_port) for process in ("controllers", "xds", "web")},
    ("test", "gateway", _SETTINGS.gateway_metrics_port),
}


@pytest.mark.parametrize(("source", "target", "port"), sorted(_NEEDED))
def test_what_has_to_be_reached_is(world: Any, source: str, target: str, port: int) -> None:
    policies, peers = world
    assert allowed(policies, peers[source], peers[target], port)


@pytest.mark.parametrize(
    ("source", "target", "port"),
    [
        ("stranger", "gateway", _GATEWAY),
        ("outside", "gateway", _GATEWAY),
        ("stranger", "web", _SETTINGS.web_port),
        ("stranger", "xds", _SETTINGS.xds_port),
        ("client", "xds", _SETTINGS.xds_port),
        ("client", "controllers", _SETTINGS.probe_port),
        ("gateway", "xds", _SETTINGS.report_port),
        ("gateway", "controllers", _SETTINGS.probe_port),
        ("gateway", "outside", 443),
        ("gateway", "model", CONTROL_PORT),
        ("web", "controllers", _SETTINGS.probe_port),
        ("web", "model", CONTROL_PORT),
        ("xds", "model", GRPC_PORT),
        ("model", "controllers", _SETTINGS.probe_port),
        ("prometheus", "node-agent", _SETTINGS.node_agent_port),
        ("node-agent", "outside", 443),
        ("node-agent", "controllers", _SETTINGS.probe_port),
        ("controllers", "stranger", 443),
    ],
)
def test_what_need_not_be_reached_is_not(world: Any, source: str, target: str, port: int) -> None:
    policies, peers = world
    assert not allowed(policies, peers[source], peers[target], port)


def test_everybody_is_a_client_unless_some_are_named(helm: Any) -> None:
    objects = rendered(helm, {"networkPolicy.enabled": True})
    policies = [body for (kind, _), body in objects.items() if kind == "NetworkPolicy"]
    peers = {name: Peer(_SYSTEM, pod_of(objects, name)["metadata"]["labels"]) for name in PROCESSES}
    for source in (_OTHERS["stranger"], _OTHERS["outside"]):
        assert allowed(policies, source, peers["gateway"], _GATEWAY)
        assert allowed(policies, source, peers["web"], _SETTINGS.web_port)
        assert not allowed(policies, source, peers["xds"], _SETTINGS.xds_port)


def test_names_are_resolved_by_all_who_have_any_to_resolve(world: Any) -> None:
    policies, peers = world
    dns = Peer("kube-system", {"k8s-app": "kube-dns"})
    found = {name for name in (*PROCESSES, "node-agent") if allowed(policies, peers[name], dns, 53, "UDP")}
    assert found == set(PROCESSES)


def test_without_the_value_nothing_is_closed(helm: Any) -> None:
    assert "NetworkPolicy" not in {kind for kind, _ in rendered(helm)}

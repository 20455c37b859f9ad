"""What NetworkPolicies allow, decided as the API documents it: for pods of one or of several namespaces, by their labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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

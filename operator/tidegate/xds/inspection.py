"""What a person may ask an xDS server: what it serves and served, what differs between two of those, and how far each proxy is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.routing import protos
from tidegate.routing.gateway_secrets import HeldSecret
from tidegate.routing.snapshot import Resource, Snapshot, TypeUrl, differing

# The content of these types is shown to nobody; names and versions are.
REDACTED_TYPES: Final = frozenset({TypeUrl.SECRET})

CURRENT: Final = "current"
PREVIOUS: Final = "previous"

Document = dict[str, object]


class ProxyKind(StrEnum):
    """The two kinds of xDS clients; each uses one of the two protocols of the aggregated discovery service."""

    GATEWAY = "gateway"
    """Envoy, with DeltaAggregatedResources."""
    GRPC_CLIENT = "grpc-client"
    """A gRPC library without a gateway, with StreamAggregatedResources: the state of the world each time."""


class SyncState(StrEnum):
    """How far a proxy is with one type, in the words of Envoy's client status discovery service."""

    SYNCED = "SYNCED"
    STALE = "STALE"
    NACKED = "NACKED"
    NOT_SENT = "NOT_SENT"


@dataclass(frozen=True, slots=True)
class ProxyState:
    """One proxy. `revision` is the last snapshot that it accepted in full; `types` is how far it is with each type that it asked for."""

    node: str
    kind: ProxyKind
    revision: str
    types: Mapping[TypeUrl, SyncState]
    nack: str | None = None


def find(history: Sequence[Snapshot], name: str) -> Snapshot | None:
    """The snapshot of that revision or beginning of one, `current` or `previous`; `history` has the newest last."""
    if name in {CURRENT, PREVIOUS}:
        back = 1 if name == CURRENT else 2
        return history[-back] if len(history) >= back else None
    return next((one for one in reversed(history) if name and one.revision.startswith(name)), None)


def revisions(history: Sequence[Snapshot]) -> list[Document]:
    """Every revision that is kept, the newest first, with the number of resources of each type."""
    return [
        {
            "revision": snapshot.revision,
            "resources": {kind.name.lower(): len(of_kind) for kind, of_kind in snapshot.resources.items()},
        }
        for snapshot in reversed(history)
    ]


def dump(snapshot: Snapshot) -> Document:
    """What the snapshot consists of, by name and version."""
    return {
        "revision": snapshot.revision,
        "resources": {
            kind.name.lower(): [{"name": name, "version": of_kind[name].version} for name in sorted(of_kind)]
            for kind, of_kind in snapshot.resources.items()
        },
    }


def contents(snapshot: Snapshot, name: str) -> Document:
    """The resources of that name, of whatever types, in plain types and with secrets left out.

    One name at a time: Written out, all that ten thousand accesses lead to is 43 MB and nine seconds of work.
    """
    return {
        "revision": snapshot.revision,
        "resources": {
            kind.name.lower(): [shown(kind, of_kind[name])]
            for kind, of_kind in snapshot.resources.items()
            if name in of_kind
        },
        "refusals": [
            f"{refusal.access} {refusal.part}: {refusal.reason}: {refusal.message}"
            for refusal in snapshot.refusals
            if name == f"access/{refusal.access}"
        ],
    }


def diff(before: Snapshot, after: Snapshot) -> Document:
    """Every name that differs, with the version that `after` has under it and that `before` had."""
    return _compared(before, after, None, lambda _, resource: resource.version)


def diff_of_contents(before: Snapshot, after: Snapshot, name: str) -> Document:
    """What `after` has under `name` and what `before` had, where that differs; secrets are left out."""
    return _compared(before, after, name, shown)


def _compared(
    before: Snapshot, after: Snapshot, only: str | None, show: Callable[[TypeUrl, Resource], object]
) -> Document:
    changes: Document = {}
    for kind in after.resources:
        names = differing(before.resources[kind], after.resources[kind])
        listed = sorted(names) if only is None else [name for name in (only,) if name in names]
        if listed:
            changes[kind.name.lower()] = [_change(kind, name, before, after, show) for name in listed]
    return {"from": before.revision, "to": after.revision, "changes": changes}


def _change(
    kind: TypeUrl,
    name: str,
    before: Snapshot,
    after: Snapshot,
    show: Callable[[TypeUrl, Resource], object],
) -> Document:
    was, now = before.resources[kind].get(name), after.resources[kind].get(name)
    return {
        "name": name,
        "change": "added" if was is None else "removed" if now is None else "changed",
        "before": None if was is None else show(kind, was),
        "after": None if now is None else show(kind, now),
    }


def shown(kind: TypeUrl, resource: Resource) -> Document:
    """One resource in plain types."""
    content: object = "redacted" if kind in REDACTED_TYPES else protos.described(resource.body)
    return {"name": resource.name, "version": resource.version, "content": content}


def held(secrets: Iterable[HeldSecret]) -> list[Document]:
    """Every Secret of the gateways' TLS port: what for, until when, and what is wrong with it; nothing of what is in it."""
    return [
        {
            "secret": one.name,
            "role": one.role.value,
            "expires": None if one.expires is None else f"{one.expires:%Y-%m-%dT%H:%M:%SZ}",
            "problem": one.problem,
        }
        for one in secrets
    ]


def proxies(states: Iterable[ProxyState]) -> list[Document]:
    """Every connected proxy, by name."""
    return [
        {
            "node": state.node,
            "kind": state.kind.value,
            "revision": state.revision,
            "types": {kind.name.lower(): str(how) for kind, how in state.types.items()},
            "nack": state.nack,
        }
        for state in sorted(states, key=lambda state: state.node)
    ]

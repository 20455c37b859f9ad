"""What a person may ask an xDS server: what it serves and served, what differs between two of those, and how far each proxy is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.routing import protos
from tidegate.routing.snapshot import Resource, Snapshot, TypeUrl, differing

# The content of these types is shown to nobody; names and versions are.
REDACTED_TYPES: Final = frozenset(
    {protos.TYPE_URL_PREFIX + "envoy.extensions.transport_sockets.tls.v3.Secret"}
)

CURRENT: Final = "current"
PREVIOUS: Final = "previous"

Document = dict[str, object]


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
    dialect: str
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
    """The whole snapshot in plain types, with secrets left out."""
    return {
        "revision": snapshot.revision,
        "resources": {
            kind.name.lower(): [shown(kind, of_kind[name]) for name in sorted(of_kind)]
            for kind, of_kind in snapshot.resources.items()
        },
        "refusals": [
            f"{refusal.access} {refusal.part}: {refusal.reason}: {refusal.message}"
            for refusal in snapshot.refusals
        ],
    }


def diff(before: Snapshot, after: Snapshot) -> Document:
    """What `after` has under each name that differs, and what `before` had; secrets are left out."""
    return {
        "from": before.revision,
        "to": after.revision,
        "changes": {
            kind.name.lower(): [
                _change(kind, before.resources[kind].get(name), after.resources[kind].get(name))
                for name in sorted(names)
            ]
            for kind in after.resources
            if (names := differing(before.resources[kind], after.resources[kind]))
        },
    }


def _change(kind: TypeUrl, before: Resource | None, after: Resource | None) -> Document:
    resource = after or before
    what = "added" if before is None else "removed" if after is None else "changed"
    return {
        "name": resource.name if resource else "",
        "change": what,
        "before": None if before is None else shown(kind, before),
        "after": None if after is None else shown(kind, after),
    }


def shown(kind: TypeUrl, resource: Resource) -> Document:
    """One resource in plain types."""
    content: object = "redacted" if kind in REDACTED_TYPES else protos.described(resource.body)
    return {"name": resource.name, "version": resource.version, "content": content}


def proxies(states: Iterable[ProxyState]) -> list[Document]:
    """Every connected proxy, by name."""
    return [
        {
            "node": state.node,
            "dialect": state.dialect,
            "revision": state.revision,
            "types": {kind.name.lower(): str(how) for kind, how in state.types.items()},
            "nack": state.nack,
        }
        for state in sorted(states, key=lambda state: state.node)
    ]

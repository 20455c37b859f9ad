"""Inspection of an xDS server: its snapshots, differences between two of them, and the progress of each proxy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.routing import protos
from tidegate.routing.gateway_secrets import GatewaySecretState
from tidegate.xds.resources import Snapshot, TypeUrl, XdsResource

# The content of these types is never shown, only names and versions.
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
    """The progress of a proxy with one type, in the terms of Envoy's client status discovery service."""

    SYNCED = "SYNCED"
    STALE = "STALE"
    NACKED = "NACKED"
    NOT_SENT = "NOT_SENT"


@dataclass(frozen=True, slots=True)
class ProxyState:
    """The progress of one proxy.

    `revision` is the last snapshot that it accepted in full; `types` has the state of each type that it subscribes to.
    """

    node: str
    kind: ProxyKind
    revision: str
    types: Mapping[TypeUrl, SyncState]
    nack: str | None = None


def find_snapshot(history: Sequence[Snapshot], name: str) -> Snapshot | None:
    """Find a snapshot by its revision, a prefix of it, `current` or `previous`.

    `history` has the newest last.
    """
    if name in {CURRENT, PREVIOUS}:
        back = 1 if name == CURRENT else 2
        return history[-back] if len(history) >= back else None
    matches = (snapshot for snapshot in reversed(history) if name and snapshot.revision.startswith(name))
    return next(matches, None)


def list_revisions(history: Sequence[Snapshot]) -> list[Document]:
    """Return every revision in the history, the newest first, with the number of resources of each type."""
    return [
        {
            "revision": snapshot.revision,
            "resources": {kind.name.lower(): len(of_kind) for kind, of_kind in snapshot.resources.items()},
        }
        for snapshot in reversed(history)
    ]


def dump_versions(snapshot: Snapshot) -> Document:
    """Return the names and versions of a snapshot's resources."""
    return {
        "revision": snapshot.revision,
        "resources": {
            kind.name.lower(): [{"name": name, "version": of_kind[name].version} for name in sorted(of_kind)]
            for kind, of_kind in snapshot.resources.items()
        },
    }


def dump_contents(snapshot: Snapshot, name: str) -> Document:
    """Return the resources with one name, of all types, as JSON and with secrets redacted.

    It takes one name, since the JSON of ten thousand accesses is 43 MB and nine seconds of work.
    """
    return {
        "revision": snapshot.revision,
        "resources": {
            kind.name.lower(): [show_resource(kind, of_kind[name])]
            for kind, of_kind in snapshot.resources.items()
            if name in of_kind
        },
        "refusals": [
            f"{refusal.access} {refusal.part}: {refusal.reason}: {refusal.message}"
            for refusal in snapshot.refusals
            if name == f"access/{refusal.access}"
        ],
    }


def diff_versions(before: Snapshot, after: Snapshot) -> Document:
    """Return every name that differs, with its versions in `after` and `before`."""
    return _diff_snapshots(before, after, None, lambda _, resource: resource.version)


def diff_contents(before: Snapshot, after: Snapshot, name: str) -> Document:
    """Return the resources under `name` in `after` and in `before`, if they differ; secrets are redacted."""
    return _diff_snapshots(before, after, name, show_resource)


def _diff_snapshots(
    before: Snapshot, after: Snapshot, only: str | None, show: Callable[[TypeUrl, XdsResource], object]
) -> Document:
    changes: Document = {}
    for kind in after.resources:
        names = after.resources[kind].differing_names(before.resources[kind])
        listed = sorted(names) if only is None else [name for name in (only,) if name in names]
        if listed:
            changes[kind.name.lower()] = [
                _describe_change(kind, name, before, after, show) for name in listed
            ]
    return {"from": before.revision, "to": after.revision, "changes": changes}


def _describe_change(
    kind: TypeUrl,
    name: str,
    before: Snapshot,
    after: Snapshot,
    show: Callable[[TypeUrl, XdsResource], object],
) -> Document:
    old, new = before.resources[kind].get(name), after.resources[kind].get(name)
    return {
        "name": name,
        "change": "added" if old is None else "removed" if new is None else "changed",
        "before": None if old is None else show(kind, old),
        "after": None if new is None else show(kind, new),
    }


def show_resource(kind: TypeUrl, resource: XdsResource) -> Document:
    """Return one resource as JSON."""
    content: object = "redacted" if kind in REDACTED_TYPES else protos.to_redacted_json(resource.body)
    return {"name": resource.name, "version": resource.version, "content": content}


def list_gateway_secrets(secrets: Iterable[GatewaySecretState]) -> list[Document]:
    """Return the role, expiry and problem of every Secret of the gateways' TLS port, and nothing of its content."""
    return [
        {
            "secret": secret.name,
            "role": secret.role.value,
            "expires": None if secret.expires_at is None else f"{secret.expires_at:%Y-%m-%dT%H:%M:%SZ}",
            "problem": secret.problem,
        }
        for secret in secrets
    ]


def list_proxies(states: Iterable[ProxyState]) -> list[Document]:
    """Return every connected proxy, by name."""
    return [
        {
            "node": state.node,
            "kind": state.kind.value,
            "revision": state.revision,
            "types": {kind.name.lower(): str(sync) for kind, sync in state.types.items()},
            "nack": state.nack,
        }
        for state in sorted(states, key=lambda state: state.node)
    ]

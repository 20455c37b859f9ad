"""Where routes lead, read off from them as they are on the wire."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tidegate.routing import wire
from tidegate.routing.snapshot import Resource, Resources, ResourceSet


def leads_to(scope: Resource, clusters: Collection[str]) -> str | None:
    """The first of `clusters` that a route of `scope` names; None when it names none of them.

    A name counts with its length before it, as protobuf writes it, so that no longer one is taken for it.
    Something else in the scope that reads the same holds it back as well: that errs on the safe side, and only after a refusal.
    """
    return next((name for name in clusters if wire.text(name) in scope.body), None)


def leading_to(scopes: Resources, cluster: str) -> Iterator[str]:
    """The names of those of `scopes` that lead to `cluster`."""
    text = wire.text(cluster)
    if isinstance(scopes, ResourceSet):
        yield from scopes.containing(text)
    else:
        yield from (name for name, scope in scopes.items() if text in scope.body)

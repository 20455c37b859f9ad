"""Where routes lead, read off from them as they are on the wire."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.routing import wire
from tidegate.routing.snapshot import Resource


def leads_to(scope: Resource, clusters: Iterable[str]) -> bool:
    """Whether a route of `scope` names one of `clusters`.

    A name counts with its length before it, as protobuf writes it, so that no longer one is taken for it.
    Something else in the scope that reads the same holds it back as well: that errs on the safe side, and only after a refusal.
    """
    return any(wire.text(name) in scope.body for name in clusters)

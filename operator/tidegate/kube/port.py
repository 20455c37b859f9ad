"""What reconcilers may ask of a cluster; the client implements it, tests put a small fake behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tidegate.api.meta import ObjectKey
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import Kind
from tidegate.planning.plan import EventType

# A Kubernetes object as JSON. Read it into a typed value before deciding anything from it.
Manifest: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventNote:
    """One thing that happened to an object, for the user who describes it."""

    kind: Kind
    key: ObjectKey
    uid: str
    type: EventType
    reason: str
    message: str


class Cluster(Protocol):
    """The API server, as far as reconcilers need it.

    Every method raises ApiUnavailableError when the server cannot answer, ConflictError on 409,
    and PermanentError when it refuses (400, 403, 422), with its own words. Writes raise LeadershipLostError
    without being sent once the fence has ended.
    """

    async def get(self, kind: Kind, key: ObjectKey) -> Manifest | None:
        """The object, or None when there is none."""
        ...

    async def list(
        self, kind: Kind, *, namespace: str = "", selector: str = "", fields: str = ""
    ) -> Sequence[Manifest]:
        """All objects of the kind, in one namespace or everywhere, that the label and field selectors pick."""
        ...

    async def apply(self, manifest: Manifest, fence: Fence) -> Manifest:
        """Server-side applies the whole object under our field manager; returns it as stored."""
        ...

    async def apply_new(self, manifest: Manifest, fence: Fence) -> Manifest | None:
        """As `apply`, for an object that is not there yet; None when there is one of its name. Asks less of the server."""
        ...

    async def take_over(self, kind: Kind, key: ObjectKey, fence: Fence) -> Manifest | None:
        """Makes ready to be applied what `apply_new` has made, and returns it as stored; None when it is gone."""
        ...

    async def merge(self, kind: Kind, key: ObjectKey, patch: Manifest, fence: Fence) -> Manifest | None:
        """Changes fields of somebody else's object; None when it is gone.

        The patch names the resourceVersion that it was made from, so that ConflictError says when another was faster.
        """
        ...

    async def delete(self, kind: Kind, key: ObjectKey, *, uid: str, fence: Fence) -> None:
        """Deletes that very object; one that is gone already, or was replaced by another, is left alone."""
        ...

    async def apply_status(
        self, kind: Kind, key: ObjectKey, status: Manifest, *, uid: str, fence: Fence
    ) -> Manifest | None:
        """Writes our part of the status; None when that very object is gone. Call it only when something changed."""
        ...

    async def create_event(self, note: EventNote) -> None:
        """Tells the user; a repeated note is written once in a while, and a failure to write it is not an error."""
        ...

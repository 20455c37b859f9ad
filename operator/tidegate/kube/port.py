"""The interface of the API server for reconcilers; KubeClient implements it, tests use a fake."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from tidegate.api.meta import ObjectKey
from tidegate.kube.fence import Fence
from tidegate.kube.kinds import Kind
from tidegate.planning.plan import EventType

# A Kubernetes object as JSON. Parse it into a typed value before you decide anything from it.
Manifest: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventNote:
    """An Event to create about an object."""

    kind: Kind
    key: ObjectKey
    uid: str
    type: EventType
    reason: str
    message: str


class ClusterApi(Protocol):
    """The API server, as far as reconcilers need it.

    Every method raises ApiUnavailableError if the server does not answer, ConflictError on 409, and PermanentError
    with the server's message if it refuses (400, 403, 422). Writes raise LeadershipLostError, and are not sent, once
    the fence has expired.
    """

    async def get(self, kind: Kind, key: ObjectKey) -> Manifest | None:
        """Return the object; None if it does not exist."""
        ...

    async def list(
        self, kind: Kind, *, namespace: str = "", selector: str = "", fields: str = ""
    ) -> Sequence[Manifest]:
        """Return all objects of the kind that the label and field selectors match, in one namespace or in all."""
        ...

    def list_pages(self, kind: Kind) -> AsyncIterator[tuple[Sequence[Manifest], str]]:
        """Yield all objects of the kind, page by page: for those that are too many to have in memory at once.

        Each page comes with the resourceVersion from which a watch sees all later changes.
        """
        ...

    async def apply(self, manifest: Manifest, fence: Fence) -> Manifest:
        """Server-side apply the whole object under our field manager; return it as stored."""
        ...

    async def apply_new(self, manifest: Manifest, fence: Fence) -> Manifest | None:
        """Create an object that is not in the cache; return it as stored, or None if one of its name exists.

        Cheaper for the API server than an apply.
        """
        ...

    async def take_over(self, kind: Kind, key: ObjectKey, fence: Fence) -> Manifest | None:
        """Turn the fields that `apply_new` created into applied ones, and return the object; None if it does not exist."""
        ...

    async def merge(self, kind: Kind, key: ObjectKey, patch: Manifest, fence: Fence) -> Manifest | None:
        """Change fields of an object that another manager owns; return it as stored, or None if it does not exist.

        The patch contains the resourceVersion that it was computed from, so that a concurrent write raises ConflictError; or the uid
        alone, where it does not depend on what the object has otherwise.
        """
        ...

    async def delete(self, kind: Kind, key: ObjectKey, *, uid: str, fence: Fence) -> None:
        """Delete the object with this uid; do nothing if it does not exist or was replaced by another one."""
        ...

    async def apply_status(
        self, kind: Kind, key: ObjectKey, status: Manifest, *, uid: str, fence: Fence
    ) -> Manifest | None:
        """Apply our fields of the status; return None if the object with this uid does not exist.

        Call it only if something changed.
        """
        ...

    async def create_event(self, note: EventNote) -> None:
        """Create an Event; repeated ones are dropped, and a failure to create it is ignored."""
        ...

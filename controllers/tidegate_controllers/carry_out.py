"""Carries a plan out: writes what differs, deletes what is stale, gives the agents their orders, says what is so."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog

from tidegate.api.meta import API_VERSION, NOT_OBSERVED, Resource
from tidegate.api.reasons import Reason
from tidegate.errors import PermanentError, RetryableError
from tidegate.kube.changes import needs_apply, over
from tidegate.kube.fence import Fence
from tidegate.kube.field_ownership import was_created
from tidegate.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    INFERENCE,
    JOB,
    POD_DISRUPTION_BUDGET,
    Kind,
    kind_of,
)
from tidegate.kube.port import Cluster, EventNote, Manifest
from tidegate.kube.store import key_of, uid_of
from tidegate.planning.plan import Deletion, Plan
from tidegate.planning.refused import plan_refused
from tidegate.planning.serving_status import Refusal
from tidegate.resources.names import MANAGED_BY, MANAGER
from tidegate_controllers.stores import Stores

_OTHERS: Final[Mapping[Kind, frozenset[str]]] = {INFERENCE: frozenset({"allocation"})}
"""Fields of a status that another part of the controllers writes, under its own field manager."""
_DELETABLE: Final[Mapping[str, Kind]] = {
    kind.kind: kind for kind in (CONFIG_MAP, DEPLOYMENT, JOB, POD_DISRUPTION_BUDGET)
}

log = structlog.get_logger(__name__)


class NameTakenError(PermanentError):
    """An object that is not ours has the name of a child that we would create."""


class PredecessorError(RetryableError):
    """A child of a deleted object of the same name is still there; its end wakes us."""


class StaleCacheError(RetryableError):
    """The object was deleted, made anew or changed, and the watch has not told us; the cache now knows."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Everything that a reconciler needs to change the cluster."""

    cluster: Cluster
    stores: Stores
    fence: Fence

    async def children(self, owner: Resource, plan: Plan) -> Refusal | None:
        """Applies the objects that differ from what is there, then deletes what is stale.

        Returns why it stopped, when the API server refuses an object or its name is somebody else's.
        Raises StaleCacheError instead of making children for an object that is no longer there, or is another.
        """
        # Of one that is new to us nothing is asked: if it is gone already, its first status finds nobody, and that is all.
        if not self._is_new(owner) and any(self._is_missing(child) for child in plan.apply):
            await self.confirm(owner)
        try:
            for manifest in plan.apply:
                await self._apply(owner, manifest)
            for deletion in plan.delete:
                await self._delete(deletion)
        except NameTakenError as error:
            return Refusal(Reason.NAME_CONFLICT, str(error))
        except PredecessorError as error:
            return Refusal(Reason.PREDECESSOR_DELETING, str(error), stalled=False)
        except PermanentError as error:
            return Refusal(Reason.CHILD_REFUSED, str(error))
        return None

    async def confirm(self, owner: Resource) -> None:
        """Asks the API server whether the object is what our cache has. Raises StaleCacheError when it is not.

        A watch may lag, or may have broken off and kept a deletion from us. Then children would be made, collected
        as nobody's and made again until the next listing, and agents ordered back to an earlier version.
        """
        kind = _kind_of(owner)
        store, uid = self.stores.of(kind), owner.metadata.uid
        stored = await self.cluster.get(kind, owner.key)
        if stored is None:
            ghost = store.get(owner.key)
            if ghost is not None and ghost["metadata"]["uid"] == uid:
                store.observe("DELETED", ghost)
            message = f"{kind.kind} {owner.key} was deleted: nothing is made for it any more"
            raise StaleCacheError(message)
        store.observe("MODIFIED", stored)
        found = stored["metadata"]
        if (found["uid"], found["generation"]) != (uid, owner.metadata.generation) or found.get(
            "deletionTimestamp"
        ):
            message = (
                f"{kind.kind} {owner.key} was changed or deleted since generation {owner.metadata.generation}"
            )
            raise StaleCacheError(message)

    async def confirm_status(self, owner: Resource, body: Manifest) -> None:
        """As `confirm`, and the status too must be the one in `body`: for decisions that are derived from it alone."""
        await self.confirm(owner)
        kind = _kind_of(owner)
        stored = self.stores.of(kind).get(owner.key) or {}
        if stored.get("status") != body.get("status"):
            message = f"{kind.kind} {owner.key} has another status than our cache had"
            raise StaleCacheError(message)

    async def status(self, kind: Kind, body: Manifest, plan: Plan) -> None:
        """Writes the status if it differs from what `body` has, and tells the user what happened."""
        key, uid = key_of(body), body["metadata"]["uid"]
        wanted = _without_others(kind, plan.status)
        if _without_others(kind, body.get("status") or {}) != wanted:
            stored = await self.cluster.apply_status(kind, key, wanted, uid=uid, fence=self.fence)
            if stored is None:
                self.stores.of(kind).observe("DELETED", body)
                return
            self.stores.of(kind).observe("MODIFIED", stored)
        for event in plan.events:
            note = EventNote(kind, key, uid, event.type, event.reason, event.message)
            await self.cluster.create_event(note)

    async def refuse(self, kind: Kind, body: Manifest, message: str, now: datetime) -> None:
        """Says that the spec does not parse, and leaves everything else as it is."""
        await self.status(kind, body, plan_refused(body, message, now))

    async def _apply(self, owner: Resource, manifest: Manifest) -> None:
        kind, key = kind_of(manifest), key_of(manifest)
        store = self.stores.of(kind)
        live = store.get(key)
        stored = await self.cluster.apply_new(manifest, self.fence) if live is None else None
        if stored is None:
            # Our caches hold only what carries our label, and may lag: a name that is taken is asked for.
            live = _ours(owner, kind, live or await self.cluster.get(kind, key))
            if not needs_apply(manifest, live):
                return
            if live is not None and was_created(live):
                live = _ours(owner, kind, await self.cluster.take_over(kind, key, self.fence))
            stored = await self.cluster.apply(over(live, manifest), self.fence)
        store.observe("MODIFIED", stored)
        log.info("object_applied", kind=kind.kind, key=str(key), owner=str(owner.key))

    def _is_new(self, owner: Resource) -> bool:
        """Whether this very object is in the cache, and nobody has written a status of it."""
        body = self.stores.of(_kind_of(owner)).get(owner.key)
        if body is None or uid_of(body) != owner.metadata.uid:
            return False
        status: Mapping[str, Any] = body.get("status") or {}
        return bool(status.get("observedGeneration", NOT_OBSERVED) == NOT_OBSERVED)

    def _is_missing(self, child: Manifest) -> bool:
        return self.stores.of(kind_of(child)).get(key_of(child)) is None

    async def _delete(self, deletion: Deletion) -> None:
        kind = _DELETABLE[deletion.kind]
        await self.cluster.delete(kind, deletion.key, uid=deletion.uid, fence=self.fence)
        log.info("object_deleted", kind=kind.kind, key=str(deletion.key))


def _kind_of(owner: Resource) -> Kind:
    return kind_of({"apiVersion": API_VERSION, "kind": owner.KIND})


def _without_others(kind: Kind, status: Mapping[str, object]) -> Mapping[str, object]:
    others = _OTHERS.get(kind, frozenset())
    return {name: value for name, value in status.items() if name not in others}


def _ours(owner: Resource, kind: Kind, live: Manifest | None) -> Manifest | None:
    """What is there, if anything. Raises NameTakenError or PredecessorError where it is not ours to change."""
    if live is None:
        return None
    metadata = live["metadata"]
    owners = {reference["uid"] for reference in metadata.get("ownerReferences") or ()}
    if owner.metadata.uid in owners:
        return live
    name = f"{kind.kind} {key_of(live)}"
    if (metadata.get("labels") or {}).get(MANAGED_BY) != MANAGER:
        message = f"{name} exists and is not Tidegate's: rename this object, or delete that one"
        raise NameTakenError(message)
    if owners:
        message = f"{name} still belongs to an object of the same name that was deleted; waiting for it to go"
        raise PredecessorError(message)
    log.info("orphan_adopted", kind=kind.kind, key=str(key_of(live)), owner=str(owner.key))
    return live

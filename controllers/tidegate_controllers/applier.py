"""Applies a plan: writes objects that differ, deletes stale ones, and writes the status and Events."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog

from tidegate.api.meta import API_VERSION, NOT_OBSERVED, CustomResource
from tidegate.api.reasons import Reason
from tidegate.errors import PermanentError, RetryableError
from tidegate.kube.changes import merge_onto_live, needs_apply
from tidegate.kube.fence import Fence
from tidegate.kube.field_ownership import was_created
from tidegate.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    INFERENCE,
    JOB,
    POD,
    POD_DISRUPTION_BUDGET,
    Kind,
    kind_of,
)
from tidegate.kube.port import ClusterApi, EventNote, Manifest
from tidegate.kube.store import key_of, uid_of
from tidegate.planning.inference.deletion_order import COST_ANNOTATION, PodCost
from tidegate.planning.inference.serving_status import PlanRefusal, plan_invalid_spec
from tidegate.planning.plan import ObjectDeletion, ReconcilePlan
from tidegate.resources.names import MANAGED_BY, MANAGER
from tidegate_controllers.stores import Stores

_FOREIGN_FIELDS: Final[Mapping[Kind, frozenset[str]]] = {INFERENCE: frozenset({"allocation"})}
"""Status fields that another part of the controllers applies under its own field manager."""
_DELETABLE: Final[Mapping[str, Kind]] = {
    kind.kind: kind for kind in (CONFIG_MAP, DEPLOYMENT, JOB, POD_DISRUPTION_BUDGET)
}

log = structlog.get_logger(__name__)


class NameTakenError(PermanentError):
    """Another owner's object has the name of a child that we would create."""


class PredecessorError(RetryableError):
    """A child of a deleted object of the same name still exists; its deletion requeues us."""


class StaleCacheError(RetryableError):
    """The object was deleted, recreated or changed, and the cache did not know; it does now."""


@dataclass(frozen=True, slots=True)
class Applier:
    """Everything that a reconciler needs to change the cluster."""

    cluster: ClusterApi
    stores: Stores
    fence: Fence

    async def apply_children(self, owner: CustomResource, plan: ReconcilePlan) -> PlanRefusal | None:
        """Apply the planned objects that differ from the live ones, then delete stale ones.

        Returns a refusal if the API server rejects an object or its name is taken.
        Raises StaleCacheError if the owner no longer exists or was recreated, instead of creating its children.
        """
        # A new owner is not confirmed: if it is already deleted, its first status write fails, which is harmless.
        if not self._is_new(owner) and any(self._is_missing(child) for child in plan.apply):
            await self.confirm_owner(owner)
        try:
            for manifest in plan.apply:
                await self._apply_child(owner, manifest)
            for deletion in plan.delete:
                await self._delete_child(deletion)
        except NameTakenError as error:
            return PlanRefusal(Reason.NAME_CONFLICT, str(error))
        except PredecessorError as error:
            return PlanRefusal(Reason.PREDECESSOR_DELETING, str(error), stalled=False)
        except PermanentError as error:
            return PlanRefusal(Reason.CHILD_REFUSED, str(error))
        return None

    async def confirm_owner(self, owner: CustomResource) -> None:
        """Check the owner in the cache against the API server. Raises StaleCacheError if they differ.

        A watch may lag, or have missed a deletion. Children would then be created, garbage-collected and created again
        until the next listing, and agents sent back to an earlier version.
        """
        kind = _owner_kind(owner)
        store, uid = self.stores.get_store(kind), owner.metadata.uid
        stored = await self.cluster.get(kind, owner.key)
        if stored is None:
            ghost = store.get(owner.key)
            if ghost is not None and ghost["metadata"]["uid"] == uid:
                store.observe("DELETED", ghost)
            message = f"{kind.kind} {owner.key} was deleted: its children are not applied"
            raise StaleCacheError(message)
        store.observe("MODIFIED", stored)
        metadata = stored["metadata"]
        if (metadata["uid"], metadata["generation"]) != (uid, owner.metadata.generation) or metadata.get(
            "deletionTimestamp"
        ):
            message = (
                f"{kind.kind} {owner.key} was changed or deleted since generation {owner.metadata.generation}"
            )
            raise StaleCacheError(message)

    async def confirm_status(self, owner: CustomResource, body: Manifest) -> None:
        """Check the owner as `confirm_owner` does, and its status against `body`: for decisions derived from the status."""
        await self.confirm_owner(owner)
        kind = _owner_kind(owner)
        stored = self.stores.get_store(kind).get(owner.key) or {}
        if stored.get("status") != body.get("status"):
            message = f"{kind.kind} {owner.key} has another status than in the cache"
            raise StaleCacheError(message)

    async def write_status(self, kind: Kind, body: Manifest, plan: ReconcilePlan) -> None:
        """Write the status if it differs from that in `body`, and create the plan's Events."""
        key, uid = key_of(body), body["metadata"]["uid"]
        desired = _drop_foreign_fields(kind, plan.status)
        if _drop_foreign_fields(kind, body.get("status") or {}) != desired:
            stored = await self.cluster.apply_status(kind, key, desired, uid=uid, fence=self.fence)
            if stored is None:
                self.stores.get_store(kind).observe("DELETED", body)
                return
            self.stores.get_store(kind).observe("MODIFIED", stored)
        for event in plan.events:
            note = EventNote(kind, key, uid, event.type, event.reason, event.message)
            await self.cluster.create_event(note)

    async def write_refusal(self, kind: Kind, body: Manifest, message: str, now: datetime) -> None:
        """Write the status of an object whose spec does not parse; its children stay as they are."""
        await self.write_status(kind, body, plan_invalid_spec(body, message, now))

    async def write_deletion_costs(self, costs: Iterable[PodCost]) -> None:
        """Write which pods end first. A refusal delays nothing: Kubernetes then chooses the pods."""
        for cost in costs:
            patch = {"metadata": {"uid": cost.uid, "annotations": {COST_ANNOTATION: cost.cost}}}
            try:
                stored = await self.cluster.merge(POD, cost.key, patch, self.fence)
            except PermanentError as error:
                log.warning("deletion_cost_refused", key=str(cost.key), error=str(error))
                return
            if stored is not None:
                self.stores.pods.observe("MODIFIED", stored)

    async def _apply_child(self, owner: CustomResource, manifest: Manifest) -> None:
        kind, key = kind_of(manifest), key_of(manifest)
        store = self.stores.get_store(kind)
        live = store.get(key)
        stored = await self.cluster.apply_new(manifest, self.fence) if live is None else None
        if stored is None:
            # Our caches have only objects with our label, and may lag, so get the object with the taken name.
            live = _check_ownership(owner, kind, live or await self.cluster.get(kind, key))
            if not needs_apply(manifest, live):
                return
            if live is not None and was_created(live):
                live = _check_ownership(owner, kind, await self.cluster.take_over(kind, key, self.fence))
            stored = await self.cluster.apply(merge_onto_live(live, manifest), self.fence)
        store.observe("MODIFIED", stored)
        log.info("object_applied", kind=kind.kind, key=str(key), owner=str(owner.key))

    def _is_new(self, owner: CustomResource) -> bool:
        """Return whether the cache has this object without a status that we wrote."""
        body = self.stores.get_store(_owner_kind(owner)).get(owner.key)
        if body is None or uid_of(body) != owner.metadata.uid:
            return False
        status: Mapping[str, Any] = body.get("status") or {}
        return bool(status.get("observedGeneration", NOT_OBSERVED) == NOT_OBSERVED)

    def _is_missing(self, child: Manifest) -> bool:
        return self.stores.get_store(kind_of(child)).get(key_of(child)) is None

    async def _delete_child(self, deletion: ObjectDeletion) -> None:
        kind = _DELETABLE[deletion.kind]
        await self.cluster.delete(kind, deletion.key, uid=deletion.uid, fence=self.fence)
        log.info("object_deleted", kind=kind.kind, key=str(deletion.key))


def _owner_kind(owner: CustomResource) -> Kind:
    return kind_of({"apiVersion": API_VERSION, "kind": owner.KIND})


def _drop_foreign_fields(kind: Kind, status: Mapping[str, object]) -> Mapping[str, object]:
    foreign_fields = _FOREIGN_FIELDS.get(kind, frozenset())
    return {name: value for name, value in status.items() if name not in foreign_fields}


def _check_ownership(owner: CustomResource, kind: Kind, live: Manifest | None) -> Manifest | None:
    """Return the live object, if any. Raises NameTakenError or PredecessorError if it is not ours to change."""
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

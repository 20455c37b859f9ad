"""Pools that share their GPUs by ResourceClaims: makes the claims, deletes them, and lets pods in that have a slice there."""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from tidegate.api.compute_pool import ComputePool, MpsBackend
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError, RetryableError
from tidegate.kube.kinds import POD, RESOURCE_CLAIM
from tidegate.kube.store import ObjectStore
from tidegate.planning.pool_claims import PoolClaims
from tidegate.planning.pool_slices import PoolSlices
from tidegate.planning.shared_claims import (
    ClaimPod,
    ClaimsPlan,
    ClaimView,
    claim_pod,
    claim_view,
    plan_claims,
)
from tidegate.resources.names import POOL_LABEL, label_value
from tidegate.resources.pod import SLICE_GATE
from tidegate.resources.sharing.shared_claim import claim_of_pod, resource_claim
from tidegate_controllers.carry_out import Writer
from tidegate_controllers.gpus import Gpus
from tidegate_controllers.placements import Placements

NOT_ENABLED: Final = (
    "backend SharedClaim is experimental and not enabled: set sharedClaims.enabled: true in Tidegate's Helm values, or use a "
    "pool with backend DevicePlugin"
)

log = structlog.get_logger(__name__)


def shares_by_claims(pool: ComputePool) -> bool:
    """Whether a pool's GPUs are shared by claims."""
    mps = pool.spec.slice.mps
    return mps is not None and mps.backend is MpsBackend.SHARED_CLAIM


class SharedClaims:
    """The claims of every pool, and the pods that wait for a slice of one."""

    def __init__(self, gpus: Gpus | None, placements: Placements, pods: ObjectStore) -> None:
        """`gpus` is None where this way of sharing is not enabled; `pods` is the cache of the pods that we made."""
        self._gpus = gpus
        self._placements = placements
        self._pods = pods
        self._refused: dict[str, str] = {}

    def known(self, pool: ComputePool) -> bool:
        """Whether everything has been listed that decides about a pool; listing begins with the first who asks."""
        if self._gpus is None or not shares_by_claims(pool):
            return True
        self._gpus.begin()
        return self._gpus.known

    def missing(self, pool: ComputePool) -> str:
        """Why the pool cannot share its GPUs so, and what to do; empty where it can, or does not want to."""
        if not shares_by_claims(pool):
            return ""
        return NOT_ENABLED if self._gpus is None else self._gpus.missing

    def subscribe(self, wake: Callable[[ObjectKey], None]) -> None:
        """Calls `wake` with the key of each pool of which a pod that names a claim has changed, or what Inferences have."""
        pool_of: dict[ObjectKey, str] = {}

        def pod_changed(key: ObjectKey) -> None:
            body = self._pods.get(key)
            pool = pool_of.pop(key, "")
            if body is not None and claim_of_pod(body.get("spec") or {}):
                pool = pool_of[key] = (body["metadata"].get("labels") or {}).get(POOL_LABEL, "")
            if pool:
                self._wake(pool, wake)

        self._pods.subscribe(pod_changed)
        self._placements.subscribe_gpus(lambda pool: self._wake(pool, wake))

    def _wake(self, label: str, wake: Callable[[ObjectKey], None]) -> None:
        for key in self._placements.pools_with_label(label):
            wake(key)

    def plan(self, pool: ComputePool) -> ClaimsPlan:
        """What is to be done about the claims of a pool."""
        if self._gpus is None or self._gpus.missing or not shares_by_claims(pool):
            return ClaimsPlan()
        name = pool.metadata.name
        pods = map(claim_pod, self._pods.by_label(POOL_LABEL, label_value(name)))
        return plan_claims(
            pool,
            PoolClaims(self._placements.claims(name)),
            [claim_view(body) for body in self._gpus.claims_of(name)],
            [each for each in pods if each is not None],
        )

    def refused(self, pool: ComputePool) -> str:
        """What the API server refused when the pool's plan was carried out last, and what to do; empty where it took all."""
        return self._refused.get(pool.metadata.uid, "")

    async def carry_out(
        self, pool: ComputePool, plan: ClaimsPlan, slices: PoolSlices, writer: Writer
    ) -> None:
        """Takes every step; what the caches do not show yet is not decided upon again.

        What is refused keeps nobody else waiting: it may be one namespace's quota, and the pool is everybody's.
        Raises the first RetryableError after all have been tried.
        """
        uid = pool.metadata.uid
        if self._gpus is None or plan == ClaimsPlan():
            self._refused.pop(uid, None)
            return
        await writer.confirm(pool)
        # First those that wait for nothing but us.
        steps = [(f"pod {pod.key}", self._admit(pod, writer)) for pod in plan.admit]
        steps += [(f"ResourceClaim {each.key}", self._delete(pool, each, writer)) for each in plan.delete]
        if slices.gpu_bytes:
            making = [(key, self._make(pool, key, slices.gpu_bytes, writer)) for key in plan.make]
            steps += [(f"ResourceClaim {key}", step) for key, step in making]
        errors = [(what, error) for what, step in steps if (error := await _tried(what, step)) is not None]
        refused = next((each for each in errors if isinstance(each[1], PermanentError)), None)
        self._refused.pop(uid, None)
        if refused is not None:
            self._refused[uid] = (
                f"the API server refuses {refused[0]}, so that pods wait at the gate {SLICE_GATE}: {refused[1]}; raise the "
                "quota of its namespace, or delete what others made there by that name"
            )
        for _, error in errors:
            if isinstance(error, RetryableError):
                raise error

    async def _make(self, pool: ComputePool, key: ObjectKey, memory_bytes: int, writer: Writer) -> None:
        made = await writer.cluster.apply(resource_claim(pool, key, memory_bytes), writer.fence)
        if self._gpus is not None:
            self._gpus.claims.observe("MODIFIED", made)
        log.info("claim_made", pool=pool.metadata.name, claim=str(key))

    async def _delete(self, pool: ComputePool, claim: ClaimView, writer: Writer) -> None:
        await writer.cluster.delete(RESOURCE_CLAIM, claim.key, uid=claim.uid, fence=writer.fence)
        log.info("claim_deleted", pool=pool.metadata.name, claim=str(claim.key))

    async def _admit(self, pod: ClaimPod, writer: Writer) -> None:
        # Gates are one list, so that it is changed as a whole, or not at all when another was faster.
        patch = {
            "metadata": {"resourceVersion": pod.resource_version},
            "spec": {"schedulingGates": [{"name": each} for each in pod.other_gates]},
        }
        changed = await writer.cluster.merge(POD, pod.key, patch, writer.fence)
        if changed is not None:
            # The cache knows at once: else the next look would let another one in, in its place.
            self._pods.observe("MODIFIED", changed)


async def _tried(what: str, step: Awaitable[None]) -> PermanentError | RetryableError | None:
    try:
        await step
    except (PermanentError, RetryableError) as error:
        log.warning("claim_step_failed", object=what, error=str(error))
        return error
    return None

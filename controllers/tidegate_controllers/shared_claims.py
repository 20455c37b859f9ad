"""Pools that share their GPUs by ResourceClaims: makes the claims, deletes them, and lets pods in that have a slice there."""

from collections.abc import Callable
from typing import Final

import structlog

from tidegate.api.compute_pool import ComputePool, MpsBackend
from tidegate.api.meta import ObjectKey
from tidegate.kube.kinds import POD, RESOURCE_CLAIM
from tidegate.kube.store import ObjectStore
from tidegate.planning.claims import PoolClaims
from tidegate.planning.pool_slices import PoolSlices
from tidegate.planning.shared_claims import ClaimPod, ClaimsPlan, claim_pod, claim_view, plan_claims
from tidegate.resources.names import POOL_LABEL, label_value
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

    async def carry_out(
        self, pool: ComputePool, plan: ClaimsPlan, slices: PoolSlices, writer: Writer
    ) -> None:
        """Takes every step; what the caches do not show yet is not decided upon again."""
        if self._gpus is None or plan == ClaimsPlan():
            return
        await writer.confirm(pool)
        for key in plan.make:
            if slices.gpu_bytes:
                made = await writer.cluster.apply(resource_claim(pool, key, slices.gpu_bytes), writer.fence)
                self._gpus.claims.observe("MODIFIED", made)
                log.info("claim_made", pool=pool.metadata.name, claim=str(key))
        for claim in plan.delete:
            await writer.cluster.delete(RESOURCE_CLAIM, claim.key, uid=claim.uid, fence=writer.fence)
            log.info("claim_deleted", pool=pool.metadata.name, claim=str(claim.key))
        for pod in plan.admit:
            await self._admit(pod, writer)

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

"""Which Inferences run on which pool's slices, and what each pool gives them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference, PoolShare, Tier
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.kube.kinds import DEPLOYMENT, JOB, Kind
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.pool_slices_cache import PoolSlicesCache
from tidegate.kube.typed_cache import TypedCache, ViewCache
from tidegate.planning.inference.deletion_order import (
    PodCost,
    find_lower_replicas,
    plan_deletion_costs,
    read_candidates,
)
from tidegate.planning.inference.deployments import DeploymentView, LiveWorkload
from tidegate.planning.inference.replicas import resolve_replicas
from tidegate.planning.pools.claims import (
    AssignedPod,
    PoolClaim,
    make_claim,
    make_remaining_claims,
    read_assigned_pod,
)
from tidegate.planning.pools.compute_pool import judge_readiness
from tidegate.planning.pools.placement import PlacementResult, place_claim, place_without_pool
from tidegate.planning.pools.pool_claims import PoolClaims
from tidegate.planning.pools.spill_over import (
    ListedPool,
    divide_inference,
    make_pool_claims,
    merge_placements,
)
from tidegate.resources.manifest import Manifest
from tidegate.resources.names import INFERENCE_LABEL, POOL_LABEL, make_child_name, to_label_value
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.stores import OwnerIndex, Stores

SPARES_CLAIM: Final = ObjectKey("", "shared-spares")
"""The key of the claim of a pool's shared spares; every Inference has a namespace."""

Wake = Callable[[ObjectKey], None]
LiveWorkloadT = TypeVar("LiveWorkloadT", bound=LiveWorkload)


@dataclass(frozen=True, slots=True)
class PoolSources:
    """What placement reads of pools: their specs, their slices, and which nodes and pods there are."""

    pools: TypedCache[ComputePool]
    views: PoolSlicesCache
    occupancy: NodeOccupancy
    ownership: Ownership


class Placements:
    """Places each Inference in its pools, and wakes those that gain from a change of a pool.

    Claims are keyed by the pool's label, because Deployments and pods carry no other name of their pool.
    """

    def __init__(self, parts: PoolSources, inferences: TypedCache[Inference], stores: Stores) -> None:
        self._parts = parts
        self._inferences = inferences
        self._deployments = stores.deployment_views
        self._jobs = stores.job_views
        self._pods = stores.pods
        self._pool_claims: defaultdict[str, PoolClaims] = defaultdict(PoolClaims)
        self._claims: dict[ObjectKey, Mapping[str, PoolClaim]] = {}
        self._workloads: dict[ObjectKey, Mapping[str, LiveWorkload]] = {}
        """The workloads of each Inference, by name."""
        self._assumed: dict[ObjectKey, Mapping[str, int]] = {}
        """Slices that were given by `place`, by pool, and may not be in the caches yet."""
        self._replicas: dict[ObjectKey, Mapping[str, int]] = {}
        """Replicas that the last `place` of each Inference gave it, by pool."""
        self._specs: dict[str, object] = {}
        self._limits: dict[ObjectKey, tuple[Reason, int]] = {}
        """What decides which claims a pool refuses: its readiness, and the slices of its largest node."""
        self._wakes: list[Wake] = []
        self._owners = (
            *(
                OwnerIndex(store, INFERENCE_LABEL, self._update_workload)
                for store in (stores.deployments, stores.jobs)
            ),
            OwnerIndex(stores.pods, INFERENCE_LABEL, self._update_claims),
        )
        inferences.store.subscribe(self._inference_changed)

    def subscribe(self, wake: Wake) -> None:
        """Call `wake` for Inferences whose pool has changed in a way that concerns them."""
        store = self._parts.pools.store
        self._wakes.append(wake)

        def pool_changed(key: ObjectKey) -> None:
            spec = (store.get(key) or {}).get("spec")
            if self._specs.get(key.name) == spec:
                self._pool_status_changed(key)
                return
            self._specs[key.name] = spec
            self._wake_all(self._claims_on(to_label_value(key.name)).list_keys())

        store.subscribe(pool_changed)

    def ensure_synced(self, inference: Inference) -> bool:
        """Start the watches of nodes and pods if this Inference needs them; return whether all caches that its placement reads have synced."""
        if inference.spec.placement is None:
            return True
        if not self._parts.pools.store.synced.is_set():
            return False
        if all(self._find_pool(share) is None for share in inference.spec.placement.pool_shares):
            return True
        self._parts.occupancy.start_watching()
        return self._parts.occupancy.has_synced

    def place(self, inference: Inference) -> PlacementResult | None:
        """Return what the pools of an Inference give it; None if its spec names no pool.

        The result counts as assigned until `forget_assumed`, like an assumed pod of kube-scheduler.
        """
        key = inference.key
        self.forget_assumed(key)
        if inference.spec.placement is None:
            return None
        resolved = resolve_replicas(inference, self.count_running(key))
        places, pods = self._list_places(inference), self._find_assigned_pods(key)
        divided = divide_inference(resolved, places)
        pending, results = divided.pending, list[PlacementResult]()
        for place, staying in zip(places, divided.staying, strict=True):
            pool = self._find_pool(place.share)
            if pool is None:
                results.append(place_without_pool(place.share.name, staying, place.live))
                continue
            claims = self._pool_claims[place.pool_label]
            claim = make_claim(
                resolved.narrow_to_pool(place.share.name),
                place.share,
                place.live,
                pods,
                replicas=staying + pending,
            )
            claims.put_claim(claim)
            results.append(place_claim(claim, place.live, pool, self._parts.views.get_slices(pool), claims))
            pending -= max(results[-1].replicas - staying, 0)
        self._assume_results(key, places, results)
        return merge_placements(results, resolved.spec.replicas)

    def _assume_results(
        self, key: ObjectKey, places: Sequence[ListedPool], results: Sequence[PlacementResult]
    ) -> None:
        """Count what pools give as assigned, and claim again what is pending."""
        given = list(zip(places, results, strict=True))
        self._replicas[key] = {place.pool_label: result.assigned_replicas for place, result in given}
        self._assumed[key] = {
            place.pool_label: result.replicas * place.share.slices
            for place, result in given
            if result.resources is not None and result.replicas
        }
        self._update_claims(key)
        for place in places:
            if place.pool_label not in self._claims.get(key, {}):
                # By the caches, which are newer, the Inference is gone or names another pool.
                self._pool_claims[place.pool_label].remove_claim(key)

    def plan_deletion_costs(
        self, inference: Inference, deployments: Iterable[DeploymentView], objects: Iterable[Manifest]
    ) -> Sequence[PodCost]:
        """Return the deletion costs to write before `objects` are applied; none without a pool, or unless they scale down."""
        placement = inference.spec.placement
        lower = find_lower_replicas(inference, deployments, objects)
        if placement is None or not lower:
            return ()
        costs: list[PodCost] = []
        owned = tuple(self._find_pods(inference.key))
        for share in placement.pool_shares:
            pool, label = self._find_pool(share), to_label_value(share.name)
            if pool is not None and label in lower:
                pods = [pod for pod in owned if _get_pool_label(pod) == label]
                slices = self._parts.views.get_slices(pool)
                costs += plan_deletion_costs(lower[label], read_candidates(pods), slices)
        return costs

    def forget_assumed(self, key: ObjectKey) -> None:
        """Drop what `place` assumed: the write succeeded or failed, and the caches reflect it."""
        if self._assumed.pop(key, None) is not None:
            self._update_claims(key)

    def list_claims(self, pool: str) -> Sequence[PoolClaim]:
        """Return the claims of Inferences that ask for slices of a pool or still have some, by key."""
        return sorted(self._claims_on(to_label_value(pool)), key=lambda claim: claim.key)

    def reserve_spares(self, label: str, by_node: Mapping[str, int]) -> None:
        """Reserve slices of a pool, given by its label, for the spares that Inferences share; on nodes that are healthy."""
        claims = self._pool_claims[label]
        before = next((claim.pods for claim in claims if claim.key == SPARES_CLAIM), {})
        if by_node:
            claims.put_claim(PoolClaim(SPARES_CLAIM, Tier.REALTIME, 1, 0, 0, "", pods=by_node))
        else:
            claims.remove_claim(SPARES_CLAIM)
        if any(by_node.get(node, 0) < slices for node, slices in before.items()):
            self._wake_gaining(label)

    def find_workload(self, key: ObjectKey) -> LiveWorkload | None:
        """Return the Deployment of an Inference with the most replicas, or the Job of its batch, if there is one."""
        workloads = self._workloads.get(key, {}).values()
        # Of several Jobs one is terminating, and the other has no pods until that one is gone.
        return max(workloads, key=lambda workload: workload.replicas, default=None)

    def count_running(self, key: ObjectKey) -> int | None:
        """Return the desired pods of an Inference in the pools that it names; None without any workload.

        While those that it has left have more, it is their number: pods that replace others do not add to them.
        """
        by_pool: dict[str, int] = {}
        for workload in self._workloads.get(key, {}).values():
            # Of several Jobs in a pool one is terminating, and the other has no pods until that one is gone.
            by_pool[workload.pool] = max(by_pool.get(workload.pool, 0), workload.replicas)
        if not by_pool:
            return None
        inference = self._inferences.get(key)
        placement = inference.spec.placement if inference is not None else None
        named = {to_label_value(share.name) for share in placement.pool_shares} if placement else set[str]()
        present = sum(count for pool, count in by_pool.items() if pool in named)
        return max(present, sum(by_pool.values()) - present)

    def find_claim(self, key: ObjectKey, pool: str) -> PoolClaim | None:
        """Return the claim of an Inference on one pool."""
        return self._claims.get(key, {}).get(to_label_value(pool))

    def count_room(self, inference: Inference, share: PoolShare) -> int:
        """Return for how many more replicas of an Inference one of its pools has free slices."""
        pool = self._find_pool(share)
        if pool is None:
            return 0
        slices = self._parts.views.get_slices(pool)
        assignments = self._claims_on(to_label_value(share.name)).assign_slices(pool, slices)
        return max(assignments.ledger.count_room(inference.spec.tier, pool, slices), 0) // share.slices

    def find_pool_workload(self, inference: Inference, share: PoolShare) -> LiveWorkload | None:
        """Return the workload of an Inference in one of its pools; if it names one pool, also one that is to move there."""
        workloads, pool = self._workloads.get(inference.key, {}), to_label_value(share.name)
        in_pool = [workload for workload in workloads.values() if workload.pool == pool]
        if in_pool:
            return max(in_pool, key=lambda workload: workload.replicas)
        if inference.spec.placement is not None and len(inference.spec.placement.pool_shares) > 1:
            return None
        return workloads.get(make_child_name("inf", inference.key.name)) or self.find_workload(inference.key)

    def _list_places(self, inference: Inference) -> Sequence[ListedPool]:
        placement, assumed = inference.spec.placement, self._assumed.get(inference.key, {})
        return [
            ListedPool(
                share,
                self.find_pool_workload(inference, share),
                self._find_pool(share) is not None,
                assumed.get(to_label_value(share.name), 0),
            )
            for share in (placement.pool_shares if placement is not None else ())
        ]

    def _find_pool(self, share: PoolShare) -> ComputePool | None:
        pool = self._parts.pools.get(ObjectKey("", share.name))
        return pool if pool is not None and pool.metadata.deletion_timestamp is None else None

    def _find_pods(self, key: ObjectKey) -> Iterable[Manifest]:
        """Return the pods that an Inference owns."""
        bodies = self._pods.by_label(INFERENCE_LABEL, to_label_value(key.name), namespace=key.namespace)
        return filter(self._parts.ownership.owns_pod, bodies)

    def _find_assigned_pods(self, key: ObjectKey) -> Sequence[AssignedPod]:
        own = map(read_assigned_pod, self._find_pods(key))
        return tuple(pod for pod in own if pod is not None)

    def _inference_changed(self, key: ObjectKey) -> None:
        if key in self._workloads:
            self._update_claims(key)
        else:
            # A first listing may have the Deployment before its Inference; it has no owner until then.
            self._update_workload(key)

    def _update_workload(self, key: ObjectKey) -> None:
        deployments = self._find_owned(DEPLOYMENT, self._deployments, key)
        jobs = self._find_owned(JOB, self._jobs, key)
        workloads: dict[str, LiveWorkload] = {**deployments, **jobs}
        self._workloads.pop(key, None)
        if workloads:
            self._workloads[key] = workloads
        self._update_claims(key)

    def _find_owned(
        self, kind: Kind, views: ViewCache[LiveWorkloadT], key: ObjectKey
    ) -> Mapping[str, LiveWorkloadT]:
        """Return the objects of a kind that an Inference owns, by name."""
        name, owns = to_label_value(key.name), self._parts.ownership.owns_workload
        bodies = views.store.by_label(INFERENCE_LABEL, name, namespace=key.namespace)
        workloads = views.by_label(INFERENCE_LABEL, name, namespace=key.namespace)
        return {
            body["metadata"]["name"]: workload
            for body, workload in zip(bodies, workloads, strict=True)
            if owns(kind, body)
        }

    def _update_claims(self, key: ObjectKey) -> None:
        """Claim again after a change of the Inference, its Deployment or one of its pods."""
        before, now = self._claims.pop(key, {}), self._make_claims(key)
        for pool in before.keys() - now.keys():
            self._pool_claims[pool].remove_claim(key)
        for pool, claim in now.items():
            self._pool_claims[pool].put_claim(claim)
        if now:
            self._claims[key] = now
        for pool, claim in before.items():
            if _leaves_more(claim, now.get(pool)):
                self._wake_gaining(pool)

    def _make_claims(self, key: ObjectKey) -> Mapping[str, PoolClaim]:
        """Make the claims of an Inference by pool: on those that it names, and on those where it still has slices."""
        inference, workloads = self._inferences.get(key), self._workloads.get(key, {}).values()
        pods = self._find_assigned_pods(key)
        if inference is None or inference.metadata.deletion_timestamp is not None:
            self._assumed.pop(key, None)
            self._replicas.pop(key, None)
            return make_remaining_claims(key, workloads, pods)
        resolved = resolve_replicas(inference, self.count_running(key))
        claims = make_pool_claims(resolved, self._list_places(inference), pods)
        return {**make_remaining_claims(key, workloads, pods, claims, resolved.spec.replicas), **claims}

    def _claims_on(self, label: str) -> PoolClaims:
        return self._pool_claims.get(label) or PoolClaims()

    def _pool_status_changed(self, key: ObjectKey) -> None:
        """Wake those that gain from slices that came, or all that wait if the pool now refuses other claims."""
        pool, label = self._parts.pools.get(key), to_label_value(key.name)
        if pool is None:
            return
        slices = self._parts.views.get_slices(pool)
        limits = judge_readiness(pool, slices).reason, slices.largest_node
        if self._limits.get(key) == limits:
            self._wake_gaining(label)
            return
        self._limits[key] = limits
        self._wake_all(self._claims_on(label).find_pending())

    def _wake_gaining(self, label: str) -> None:
        """Wake only Inferences that get more than `place` gave them last: none in a full pool, however many wait."""
        claims = self._claims_on(label)
        # One pool, unless the names of several have the same beginning and hash.
        for key in self._parts.pools.store.keys():  # noqa: SIM118 - a store, not a dict
            pool = self._parts.pools.get(key) if to_label_value(key.name) == label else None
            if pool is not None:
                gains = claims.assign_slices(pool, self._parts.views.get_slices(pool)).find_gains()
                self._wake_all(
                    [
                        gaining
                        for gaining, replicas in gains.items()
                        if replicas > self._replicas.get(gaining, {}).get(label, 0)
                    ]
                )

    def _wake_all(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            for wake in self._wakes:
                wake(key)


def _leaves_more(before: PoolClaim, now: PoolClaim | None) -> bool:
    """Return whether there may be more for others than before."""
    if now is None:
        return True
    return now.all_slices < before.all_slices or now.replicas * now.slices < before.replicas * before.slices


def _get_pool_label(pod: Mapping[str, Any]) -> str:
    return str((pod["metadata"].get("labels") or {}).get(POOL_LABEL, ""))

"""Which Inferences run on which pool's slices, and what each pool gives them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference, Placement
from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.kube.kinds import DEPLOYMENT, JOB, Kind
from tidegate.kube.occupancy import Occupancy
from tidegate.kube.parsed import Parsed
from tidegate.kube.pool_views import PoolViews
from tidegate.kube.views import Views
from tidegate.planning.claims import Claim, SeatedPod, claim, remainders, seated_pod
from tidegate.planning.compute_pool import readiness
from tidegate.planning.deployments import Holding
from tidegate.planning.placement import Placing, place, without_pool
from tidegate.planning.pool_claims import PoolClaims
from tidegate.planning.replicas import settled
from tidegate.resources.names import INFERENCE_LABEL, label_value
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.stores import Owners, Stores

Wake = Callable[[ObjectKey], None]
HoldingT = TypeVar("HoldingT", bound=Holding)


@dataclass(frozen=True, slots=True)
class PoolParts:
    """What is known of pools: their specs, their slices, and whether nodes and pods are known at all."""

    pools: Parsed[ComputePool]
    views: PoolViews
    occupancy: Occupancy
    ownership: Ownership


class Placements:
    """Gives each Inference its share of its pool, and calls those that wait when a pool has changed."""

    def __init__(self, parts: PoolParts, inferences: Parsed[Inference], stores: Stores) -> None:
        self._parts = parts
        self._inferences = inferences
        self._deployments = stores.deployment_views
        self._jobs = stores.job_views
        self._pods = stores.pods
        self._claims: defaultdict[str, PoolClaims] = defaultdict(PoolClaims)
        self._of: dict[ObjectKey, Mapping[str, Claim]] = {}
        self._live: dict[ObjectKey, Holding] = {}
        self._booked: dict[ObjectKey, int] = {}
        self._given: dict[ObjectKey, int] = {}
        """The share that each was last told of."""
        self._specs: dict[str, object] = {}
        self._takes: dict[ObjectKey, tuple[Reason, int]] = {}
        """Whom a pool takes: what it says of itself, and the slices of its largest node."""
        self._wakes: list[Wake] = []
        self._owners = (
            *(
                Owners(each, INFERENCE_LABEL, self._holding_changed)
                for each in (stores.deployments, stores.jobs)
            ),
            Owners(stores.pods, INFERENCE_LABEL, self._claim_again),
        )
        inferences.store.subscribe(self._inference_changed)

    def connect(self, wake: Wake) -> None:
        """From now on calls `wake` for Inferences whose pool has changed in a way that concerns them."""
        store = self._parts.pools.store
        self._wakes.append(wake)

        def pool_changed(key: ObjectKey) -> None:
            spec = (store.get(key) or {}).get("spec")
            if self._specs.get(key.name) == spec:
                self._pool_status_changed(key)
                return
            self._specs[key.name] = spec
            self._wake_all(self._claims_on(label_value(key.name)).keys())

        store.subscribe(pool_changed)

    def known(self, inference: Inference) -> bool:
        """Whether everything has been listed that decides about it; listing begins with the first who asks."""
        if inference.spec.placement is None:
            return True
        if not self._parts.pools.store.synced.is_set():
            return False
        if self._pool(inference.spec.placement) is None:
            return True
        self._parts.occupancy.begin()
        return self._parts.occupancy.known

    def of(self, inference: Inference) -> Placing | None:
        """What the pool of an Inference gives it; None where its spec names no pool.

        What it is given counts as its own from here on, until `forget`.
        """
        placement = inference.spec.placement
        self.forget(inference.key)
        if placement is None:
            return None
        pool, live = self._pool(placement), self.live(inference.key)
        if pool is None:
            return without_pool(placement.pool, settled(inference, live).spec.replicas, live)
        wanted = claim(settled(inference, live), placement, live, self._seated(inference.key))
        label = label_value(placement.pool)
        claims, slices = self._claims[label], self._parts.views.slices(pool)
        claims.put(wanted)
        placing = place(wanted, live, pool, slices, claims)
        self._given[inference.key] = claims.shares(pool, slices).replicas(inference.key)
        if placing.resources is not None and placing.replicas:
            self._booked[inference.key] = placing.replicas * placement.slices
        self._claim_again(inference.key)
        if label not in self._of.get(inference.key, {}):
            # As the caches have it: the Inference is gone by now, or wants to be elsewhere.
            claims.remove(inference.key)
        return placing

    def forget(self, key: ObjectKey) -> None:
        """What was given has been written or refused: the caches say what it has."""
        if self._booked.pop(key, None) is not None:
            self._claim_again(key)

    def _pools_with_label(self, label: str) -> Iterable[ObjectKey]:
        """The pools whose pods carry this label: one, but for names of the same beginning and hash."""
        return [key for key in self._parts.pools.store.keys() if label_value(key.name) == label]  # noqa: SIM118

    def claims(self, pool: str) -> Sequence[Claim]:
        """Who wants slices of a pool, or still has some, as the caches have it now; by key."""
        return sorted(self._claims_on(label_value(pool)), key=lambda each: each.key)

    def _pool(self, placement: Placement) -> ComputePool | None:
        pool = self._parts.pools.get(ObjectKey("", placement.pool))
        return pool if pool is not None and pool.metadata.deletion_timestamp is None else None

    def live(self, key: ObjectKey) -> Holding | None:
        """The Deployment of an Inference, or the Job of its batch, if there is one."""
        return self._live.get(key)

    def _seated(self, key: ObjectKey) -> Sequence[SeatedPod]:
        bodies = self._pods.by_label(INFERENCE_LABEL, label_value(key.name), namespace=key.namespace)
        own = filter(self._parts.ownership.owns_pod, bodies)
        return tuple(pod for pod in map(seated_pod, own) if pod is not None)

    def _inference_changed(self, key: ObjectKey) -> None:
        if key in self._live:
            self._claim_again(key)
        else:
            # In a first listing a Deployment may come before its Inference, and is nobody's until then.
            self._holding_changed(key)

    def _holding_changed(self, key: ObjectKey) -> None:
        views: tuple[Holding, ...] = (
            *self._own(DEPLOYMENT, self._deployments, key),
            *self._own(JOB, self._jobs, key),
        )
        self._live.pop(key, None)
        if views:
            # Of several Jobs, one is on its way out, and the other one has no pods before it is gone.
            self._live[key] = max(views, key=lambda view: view.replicas)
        self._claim_again(key)

    def _own(self, kind: Kind, views: Views[HoldingT], key: ObjectKey) -> Sequence[HoldingT]:
        """Those of a kind's objects that are an Inference's own."""
        name, owns = label_value(key.name), self._parts.ownership.owns_workload
        bodies = views.store.by_label(INFERENCE_LABEL, name, namespace=key.namespace)
        found = views.by_label(INFERENCE_LABEL, name, namespace=key.namespace)
        return [view for body, view in zip(bodies, found, strict=True) if owns(kind, body)]

    def _claim_again(self, key: ObjectKey) -> None:
        """The Inference, its Deployment or one of its pods has changed."""
        before, now = self._of.pop(key, {}), self._claims_of(key)
        for pool in before.keys() - now.keys():
            self._claims[pool].remove(key)
        for pool, each in now.items():
            self._claims[pool].put(each)
        if now:
            self._of[key] = now
        for pool, each in before.items():
            if _leaves_more(each, now.get(pool)):
                self._wake_those_that_gain(pool)

    def _claims_of(self, key: ObjectKey) -> Mapping[str, Claim]:
        """By pool: the one that it wants, and those where it still has something."""
        inference, live, pods = self._inferences.get(key), self.live(key), self._seated(key)
        if inference is None or inference.metadata.deletion_timestamp is not None:
            self._booked.pop(key, None)
            self._given.pop(key, None)
            return remainders(key, live, pods, None)
        placement = inference.spec.placement
        if placement is None:
            return remainders(key, live, pods, None)
        pool = label_value(placement.pool)
        wanted = claim(settled(inference, live), placement, live, pods, self._booked.get(key, 0))
        return {**remainders(key, live, pods, pool), pool: wanted}

    def _claims_on(self, label: str) -> PoolClaims:
        return self._claims.get(label) or PoolClaims()

    def _pool_status_changed(self, key: ObjectKey) -> None:
        """Slices have come or gone, which is of interest to those that get some, or the pool takes others than before."""
        pool, label = self._parts.pools.get(key), label_value(key.name)
        if pool is None:
            return
        slices = self._parts.views.slices(pool)
        takes = readiness(pool, slices).reason, slices.largest
        if self._takes.get(key) == takes:
            self._wake_those_that_gain(label)
            return
        self._takes[key] = takes
        self._wake_all(self._claims_on(label).waiting())

    def _wake_those_that_gain(self, label: str) -> None:
        """Calls those alone that are given more than they were told last: in a full pool that is nobody, however many wait."""
        claims = self._claims_on(label)
        for key in self._pools_with_label(label):
            pool = self._parts.pools.get(key)
            if pool is None:
                continue
            gains = claims.shares(pool, self._parts.views.slices(pool)).gains()
            self._wake_all([one for one, replicas in gains.items() if replicas > self._given.get(one, 0)])

    def _wake_all(self, keys: Iterable[ObjectKey]) -> None:
        for key in keys:
            for wake in self._wakes:
                wake(key)


def _leaves_more(before: Claim, now: Claim | None) -> bool:
    """Whether there may be more for others than before."""
    if now is None:
        return True
    return now.taken < before.taken or now.replicas * now.slices < before.replicas * before.slices

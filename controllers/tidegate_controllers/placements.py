"""Which Inferences run on which pool's slices, and what each pool gives them."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import ConditionStatus, ConditionType
from tidegate.api.inference import Inference, Placement
from tidegate.api.meta import ObjectKey
from tidegate.kube.parsed import Parsed
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.planning.deployments import DeploymentView, deployment_view
from tidegate.planning.placement import Claim, Placing, claim, place, without_pool
from tidegate.resources.names import INFERENCE_LABEL, POOL_LABEL, SLICES_LABEL, label_value
from tidegate_controllers.occupancy import Occupancy
from tidegate_controllers.pool_views import PoolViews
from tidegate_controllers.stores import Owners

Wake = Callable[[ObjectKey], None]


@dataclass(frozen=True, slots=True)
class PoolParts:
    """What is known of pools: their specs, their slices, and whether nodes and pods are known at all."""

    pools: Parsed[ComputePool]
    views: PoolViews
    occupancy: Occupancy


class Placements:
    """Gives each Inference its share of its pool, and calls those that wait when a pool has changed."""

    def __init__(self, parts: PoolParts, inferences: Parsed[Inference], deployments: ObjectStore) -> None:
        self._parts = parts
        self._inferences = inferences
        self._deployments = deployments
        self._pool_of: dict[ObjectKey, str] = {}
        self._claims: defaultdict[str, dict[ObjectKey, Claim]] = defaultdict(dict)
        self._specs: dict[str, object] = {}
        self._held: dict[ObjectKey, _Held] = {}
        self._owner = Owners(deployments, INFERENCE_LABEL, self._claim_again)
        inferences.store.subscribe(self._claim_again)

    def connect(self, wake: Wake) -> None:
        """From now on calls `wake` for Inferences whose pool has changed in a way that concerns them."""
        store = self._parts.pools.store

        def pool_changed(key: ObjectKey) -> None:
            spec = (store.get(key) or {}).get("spec")
            # A changed spec is everybody's; slices that come and go are of interest to those alone that lack some.
            everybody = self._specs.get(key.name) != spec
            self._specs[key.name] = spec
            self._wake(key.name, wake, everybody=everybody)

        def deployment_changed(key: ObjectKey) -> None:
            body = self._deployments.get(key)
            before, now = self._held.pop(key, None), None
            if body is not None:
                now = self._held[key] = _held(body)
            if before != now:
                for pool in {each.pool for each in (before, now) if each is not None and each.pool}:
                    self._wake(pool, wake)

        store.subscribe(pool_changed)
        self._deployments.subscribe(deployment_changed)

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
        """What the pool of an Inference gives it; None where its spec names no pool."""
        placement = inference.spec.placement
        if placement is None:
            return None
        pool, live = self._pool(placement), self._live(inference.key)
        if pool is None:
            return without_pool(placement.pool, live)
        wanted = claim(inference, placement, live)
        claims = {**self._claims[placement.pool], inference.key: wanted}
        return place(wanted, live, pool, self._parts.views.slices(pool), tuple(claims.values()))

    def _pool(self, placement: Placement) -> ComputePool | None:
        pool = self._parts.pools.get(ObjectKey("", placement.pool))
        return pool if pool is not None and pool.metadata.deletion_timestamp is None else None

    def _live(self, key: ObjectKey) -> DeploymentView | None:
        name = label_value(key.name)
        bodies = self._deployments.by_label(INFERENCE_LABEL, name, namespace=key.namespace)
        return next((deployment_view(body) for body in bodies), None)

    def _claim_again(self, key: ObjectKey) -> None:
        """Either the Inference or its Deployment has changed."""
        before = self._pool_of.pop(key, None)
        if before is not None:
            del self._claims[before][key]
        inference = self._inferences.get(key)
        if inference is None or inference.metadata.deletion_timestamp is not None:
            return
        placement = inference.spec.placement
        if placement is not None:
            self._pool_of[key] = placement.pool
            self._claims[placement.pool][key] = claim(inference, placement, self._live(key))

    def _wake(self, pool: str, wake: Wake, *, everybody: bool = False) -> None:
        for key in tuple(self._claims.get(pool, ())):
            if everybody or self._waits(key):
                wake(key)

    def _waits(self, key: ObjectKey) -> bool:
        inference = self._inferences.get(key)
        if inference is None:
            return False
        conditions = inference.status.conditions
        placed = next((each for each in conditions if each.type == ConditionType.PLACED.value), None)
        return placed is None or placed.status is not ConditionStatus.TRUE


@dataclass(frozen=True, slots=True)
class _Held:
    """What a Deployment has of a pool."""

    pool: str
    slices: str
    replicas: int


def _held(body: Manifest) -> _Held:
    labels = body["metadata"].get("labels") or {}
    return _Held(labels.get(POOL_LABEL, ""), labels.get(SLICES_LABEL, ""), body["spec"].get("replicas", 1))

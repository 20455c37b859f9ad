"""Which Inferences run on which pool's slices, and what each pool gives them."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import ConditionStatus, ConditionType
from tidegate.api.inference import Inference, Placement
from tidegate.api.meta import ObjectKey
from tidegate.kube.parsed import Parsed
from tidegate.kube.store import ObjectStore
from tidegate.planning.deployments import DeploymentView, deployment_view
from tidegate.planning.placement import Claim, Placing, claim, place, without_pool
from tidegate.planning.pool_slices import PoolSlices, pool_slices
from tidegate.resources.names import INFERENCE_LABEL, POOL_LABEL, SLICES_LABEL, label_value
from tidegate_controllers.occupancy import Occupancy

_HELD: Final = (POOL_LABEL, SLICES_LABEL)

Wake = Callable[[ObjectKey], None]


class Placements:
    """Gives each Inference its share of its pool, and calls those that wait when a pool has changed."""

    def __init__(
        self,
        pools: Parsed[ComputePool],
        inferences: Parsed[Inference],
        deployments: ObjectStore,
        occupancy: Occupancy,
    ) -> None:
        self._pools = pools
        self._inferences = inferences
        self._deployments = deployments
        self._occupancy = occupancy
        self._pool_of: dict[ObjectKey, str] = {}
        self._users: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._specs: dict[str, object] = {}
        inferences.store.subscribe(self._inference_changed)

    def connect(self, wake: Wake) -> None:
        """From now on calls `wake` for Inferences whose pool has changed in a way that concerns them."""

        def pool_changed(key: ObjectKey) -> None:
            spec = (self._pools.store.get(key) or {}).get("spec")
            # A changed spec is everybody's; slices that come and go are of interest to those alone that lack some.
            everybody = self._specs.get(key.name) != spec
            self._specs[key.name] = spec
            for user in tuple(self._users.get(key.name, ())):
                if everybody or self._waits(user):
                    wake(user)

        held: dict[ObjectKey, tuple[object, ...]] = {}

        def deployment_changed(key: ObjectKey) -> None:
            body = self._deployments.get(key)
            before, now = held.pop(key, None), None
            if body is not None:
                labels = body["metadata"].get("labels") or {}
                now = held[key] = (*(labels.get(name) for name in _HELD), body["spec"].get("replicas"))
            if before == now:
                return
            for pool in {str(each[0]) for each in (before, now) if each is not None and each[0]}:
                for user in tuple(self._users.get(pool, ())):
                    if self._waits(user):
                        wake(user)

        self._pools.store.subscribe(pool_changed)
        self._deployments.subscribe(deployment_changed)

    def known(self, inference: Inference) -> bool:
        """Whether everything has been listed that decides about it; listing begins with the first who asks."""
        if inference.spec.placement is None:
            return True
        if not self._pools.store.synced.is_set():
            return False
        if self._pool(inference.spec.placement) is None:
            return True
        self._occupancy.begin()
        return self._occupancy.known

    def of(self, inference: Inference) -> Placing | None:
        """What the pool of an Inference gives it; None where its spec names no pool."""
        placement = inference.spec.placement
        if placement is None:
            return None
        pool, live = self._pool(placement), self._live(inference.key)
        if pool is None:
            return without_pool(placement.pool, live)
        wanted = claim(inference, placement, live)
        return place(wanted, live, pool, self._slices(pool), tuple(self._claims(placement.pool)))

    def _pool(self, placement: Placement) -> ComputePool | None:
        pool = self._pools.get(ObjectKey("", placement.pool))
        return pool if pool is not None and pool.metadata.deletion_timestamp is None else None

    def _slices(self, pool: ComputePool) -> PoolSlices:
        nodes = [node for node in self._occupancy.nodes() if node.selected_by(pool.spec.node_selector)]
        return pool_slices(pool, nodes, self._occupancy.occupants(nodes), self._pools.all())

    def _claims(self, pool: str) -> Iterator[Claim]:
        for key in sorted(self._users.get(pool, ())):
            inference = self._inferences.get(key)
            if inference is None or inference.spec.placement is None:
                continue
            if inference.metadata.deletion_timestamp is None:
                yield claim(inference, inference.spec.placement, self._live(key))

    def _live(self, key: ObjectKey) -> DeploymentView | None:
        name = label_value(key.name)
        bodies = self._deployments.by_label(INFERENCE_LABEL, name, namespace=key.namespace)
        return next((deployment_view(body) for body in bodies), None)

    def _inference_changed(self, key: ObjectKey) -> None:
        before = self._pool_of.pop(key, None)
        if before is not None:
            self._users[before].discard(key)
        inference = self._inferences.get(key)
        if inference is not None and inference.spec.placement is not None:
            pool = self._pool_of[key] = inference.spec.placement.pool
            self._users[pool].add(key)

    def _waits(self, key: ObjectKey) -> bool:
        inference = self._inferences.get(key)
        if inference is None:
            return False
        conditions = inference.status.conditions
        placed = next((each for each in conditions if each.type == ConditionType.PLACED.value), None)
        return placed is None or placed.status is not ConditionStatus.TRUE

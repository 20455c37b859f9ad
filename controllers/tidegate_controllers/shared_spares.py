"""What the controllers know about shared spares: the plans of pools, the Deployments and pods, and the slices reserved for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.shared_spares import SharedSparesStatus
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore, key_of, labels_of
from tidegate.planning.allocator.spare_plan import LiveSpare, PoolSparePlan
from tidegate.planning.pools.spare_pods import SpareDeployment, list_live_spares, read_deployment
from tidegate.resources.names import POOL_LABEL, SPARE_LABEL, parse_slices, to_label_value
from tidegate_controllers.ownership import Ownership
from tidegate_controllers.placements import Placements
from tidegate_controllers.stores import Stores

_NOTHING: Final = PoolSparePlan()

Wake = Callable[[ObjectKey], None]
"""Takes the key of a pool."""


class SharedSpares:
    """The plan of each pool for one term, and the objects made from it.

    The slices of planned spares are reserved at once, and those of others until their pods are gone.
    """

    def __init__(self, stores: Stores, ownership: Ownership, placements: Placements) -> None:
        self._stores = stores
        self._ownership = ownership
        self._placements = placements
        self._plans: dict[ObjectKey, PoolSparePlan] = {}
        self._statuses: dict[ObjectKey, SharedSparesStatus | None] = {}
        self._pools_of: dict[ObjectKey, ObjectKey] = {}
        """The pool of each Inference that has a spare."""
        self._labels: dict[tuple[Kind, ObjectKey], str] = {}
        """The pool's label of each Deployment and pod of a spare."""
        self._children: defaultdict[tuple[Kind, str], set[ObjectKey]] = defaultdict(set)
        """The same the other way round: what is asked about a pool costs its spares, not its pods."""
        self._wakes: list[Wake] = []
        self._status_wakes: list[Wake] = []
        for store in (stores.deployments, stores.pods):
            store.subscribe(self._follow_store(store))
        stores.inferences.subscribe(self._inference_changed)
        stores.pools.subscribe(self._pool_changed)

    def subscribe_pools(self, wake: Wake) -> None:
        """Call `wake` with each pool whose spares are to be reconciled."""
        self._wakes.append(wake)

    def subscribe_statuses(self, wake: Wake) -> None:
        """Call `wake` with each pool whose status is to show something else."""
        self._status_wakes.append(wake)

    def get_plan(self, pool: ObjectKey) -> PoolSparePlan | None:
        """Return the plan of a pool; None before the allocator has made one in this term."""
        return self._plans.get(pool)

    def put_plan(self, pool: ObjectKey, plan: PoolSparePlan) -> None:
        """Take the plan of a pool, and reserve its slices."""
        before = self._plans.get(pool)
        if before == plan:
            return
        self._plans[pool] = plan
        for spare in (before or _NOTHING).spares:
            for name in spare.models:
                inference = ObjectKey(spare.namespace, name)
                # One that moves may be in the plan of another pool already.
                if self._pools_of.get(inference) == pool:
                    del self._pools_of[inference]
        for spare in plan.spares:
            for name in spare.models:
                self._pools_of[ObjectKey(spare.namespace, name)] = pool
        self._reserve_slices(to_label_value(pool.name))
        self._wake_all(pool)

    def get_status(self, pool: ObjectKey, before: SharedSparesStatus | None) -> SharedSparesStatus | None:
        """Return what a pool's status is to show; `before`, as long as nothing is known in this term."""
        return self._statuses.get(pool, before)

    def put_status(self, pool: ObjectKey, status: SharedSparesStatus | None) -> None:
        """Take what a pool's status is to show."""
        if pool in self._statuses and self._statuses[pool] == status:
            return
        self._statuses[pool] = status
        for wake in self._status_wakes:
            wake(pool)

    def forget_pool(self, pool: ObjectKey) -> None:
        """Forget a deleted pool."""
        self.put_plan(pool, _NOTHING)
        del self._plans[pool]
        self._statuses.pop(pool, None)

    def forget_plans(self) -> None:
        """Forget all plans when a new term begins, since another leader may have made others."""
        self._plans.clear()
        self._statuses.clear()
        self._pools_of.clear()

    def list_live(self, pool: ObjectKey) -> tuple[LiveSpare, ...]:
        """Return the spares of a pool that exist."""
        return list_live_spares(self.list_deployments(pool))

    def list_deployments(self, pool: ObjectKey) -> Sequence[SpareDeployment]:
        """Return the Deployments of a pool's spares, with their pods."""
        label = to_label_value(pool.name)
        deployments = [
            body
            for body in self._list_children(self._stores.deployments, label)
            if self._ownership.owns_spare(body)
        ]
        if not deployments:
            return ()
        pods = self._list_pods(label)
        views = self._stores.pod_views
        return tuple(
            read_deployment(
                body,
                [
                    view
                    for pod in pods
                    if (pod["metadata"]["namespace"], labels_of(pod)[SPARE_LABEL])
                    == (body["metadata"]["namespace"], labels_of(body)[SPARE_LABEL])
                    and (view := views.get(key_of(pod))) is not None
                ],
            )
            for body in deployments
        )

    def _list_pods(self, label: str) -> Sequence[Manifest]:
        bodies = self._list_children(self._stores.pods, label)
        return [body for body in bodies if self._ownership.owns_pod(body)]

    def _list_children(self, store: ObjectStore, label: str) -> Sequence[Manifest]:
        keys = self._children.get((store.kind, label), ())
        bodies = (store.get(key) for key in sorted(keys))
        return [body for body in bodies if body is not None]

    def _reserve_slices(self, label: str) -> None:
        """Reserve the slices of planned spares, and of pods whose spare is not planned any more.

        Before the first plan of a term, the spares that exist count as planned.
        """
        by_node: Counter[str] = Counter()
        planned: set[tuple[str, str]] = set()
        for key in self._find_pools(label):
            plan = self._plans.get(key)
            spares = plan.spares if plan is not None else [live.planned for live in self.list_live(key)]
            for spare in spares:
                by_node[spare.node] += spare.slices
            planned |= {(spare.namespace, str(spare.number)) for spare in spares}
        for pod in self._list_pods(label):
            if (pod["metadata"]["namespace"], labels_of(pod)[SPARE_LABEL]) not in planned:
                by_node[pod["spec"].get("nodeName", "")] += parse_slices(labels_of(pod))
        self._placements.reserve_spares(label, by_node)

    def _find_pools(self, label: str) -> Sequence[ObjectKey]:
        """Return the pool with this label; several, if their names have the same beginning and hash."""
        keys = self._stores.pools.keys()
        return [key for key in keys if to_label_value(key.name) == label]

    def _follow_store(self, store: ObjectStore) -> Wake:
        def child_changed(key: ObjectKey) -> None:
            body, place = store.get(key), (store.kind, key)
            labels = labels_of(body) if body is not None else {}
            before = self._labels.pop(place, None)
            label = labels.get(POOL_LABEL) if SPARE_LABEL in labels else None
            if before is not None:
                self._children[store.kind, before].discard(key)
            if label is not None:
                self._labels[place] = label
                self._children[store.kind, label].add(key)
            for changed in {before, label} - {None}:
                self._spares_changed(str(changed))

        return child_changed

    def _spares_changed(self, label: str) -> None:
        self._reserve_slices(label)
        for pool in self._find_pools(label):
            self._wake_all(pool)

    def _pool_changed(self, key: ObjectKey) -> None:
        """Reserve the slices of spares whose pool came after them, as it may when a process starts."""
        label = to_label_value(key.name)
        if any(
            self._children.get((store.kind, label)) for store in (self._stores.deployments, self._stores.pods)
        ):
            self._reserve_slices(label)

    def _inference_changed(self, key: ObjectKey) -> None:
        pool = self._pools_of.get(key)
        if pool is not None:
            self._wake_all(pool)

    def _wake_all(self, pool: ObjectKey) -> None:
        for wake in self._wakes:
            wake(pool)

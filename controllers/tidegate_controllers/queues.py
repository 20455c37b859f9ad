"""Connects caches to work queues: which change requeues which key."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from tidegate.api.compute_override import OverrideKind
from tidegate.api.feature_compute import DEFINITION_PARTS, FeatureCompute
from tidegate.api.meta import ObjectKey
from tidegate.api.shared_names import SHARED_WITH_ANNOTATION
from tidegate.kube.occupancy import NodeOccupancy
from tidegate.kube.store import ObjectStore
from tidegate.resources.names import ACCESS_LABEL, BACKFILL_LABEL, FEATURE_COMPUTE_LABEL, INFERENCE_LABEL
from tidegate.routing.hosts import HostKind
from tidegate.runtime.workqueue import WorkQueue
from tidegate_controllers.proxies import ProxyReports
from tidegate_controllers.sharing import GpuSharing
from tidegate_controllers.stores import OwnerIndex, Stores
from tidegate_controllers.typed_caches import FeatureUsersIndex, OverrideIndex, TypedCaches

_STARTING_DELAY: Final = timedelta(milliseconds=500)
"""A starting pod changes several times per second; its owner is reconciled once, and again when it is ready."""


@dataclass(frozen=True, slots=True)
class WorkQueues:
    """One work queue per kind."""

    inferences: WorkQueue
    features: WorkQueue
    accesses: WorkQueue
    pools: WorkQueue
    spares: WorkQueue
    """Pools again, for the spares that Inferences share."""
    allocators: WorkQueue
    """Pools again, for the allocator."""
    overrides: WorkQueue

    def list_queues(self) -> tuple[WorkQueue, ...]:
        """Return every queue."""
        return (
            self.inferences,
            self.features,
            self.accesses,
            self.pools,
            self.spares,
            self.allocators,
            self.overrides,
        )

    def enqueue_pod_owners(self, stores: Stores) -> None:
        """Enqueue everything that has pods, since the inputs of all of them have changed."""
        for queue in (self.inferences, self.features, self.accesses, self.spares):
            for key in self.list_sources(stores)[queue]():
                queue.add(key)

    def list_sources(self, stores: Stores) -> Mapping[WorkQueue, Callable[[], tuple[ObjectKey, ...]]]:
        """Return a function per queue that lists its keys, for the first pass and for resyncs."""
        return {
            self.inferences: lambda: tuple(stores.inferences.keys()),
            self.features: lambda: tuple(stores.features.keys()),
            self.accesses: lambda: tuple(stores.accesses.keys()),
            self.pools: lambda: tuple(stores.pools.keys()),
            self.spares: lambda: tuple(stores.pools.keys()),
            self.allocators: lambda: tuple(stores.pools.keys()),
            self.overrides: lambda: tuple(stores.overrides.keys()),
        }


def connect_objects(stores: Stores, caches: TypedCaches, queues: WorkQueues, proxies: ProxyReports) -> None:
    """Enqueue the objects that depend on a change, from now on."""
    accesses = caches.accesses
    stores.inferences.subscribe(queues.inferences.add)
    stores.features.subscribe(queues.features.add)
    stores.accesses.subscribe(queues.accesses.add)
    proxies.subscribe(HostKind.ACCESS, queues.accesses.add)
    proxies.subscribe(HostKind.FEATURES, queues.features.add)
    for store in stores.owned_stores():
        for label, queue in (
            (INFERENCE_LABEL, queues.inferences),
            (FEATURE_COMPUTE_LABEL, queues.features),
            (BACKFILL_LABEL, queues.features),
            (ACCESS_LABEL, queues.accesses),
        ):
            starting, soon = (
                partial(stores.is_starting, store.kind),
                partial(queue.add_after, delay=_STARTING_DELAY),
            )
            OwnerIndex(store, label, queue.add, is_transient=starting, wake_soon=soon)

    def wake_callers(called: ObjectKey) -> None:
        for access in accesses.find_callers(called):
            queues.accesses.add(access)

    def wake_users(inference: ObjectKey) -> None:
        for access in accesses.find_by_inference(inference):
            queues.accesses.add(access)
            wake_callers(access)

    def wake_feature_users(features: ObjectKey) -> None:
        for access in accesses.find_by_features(features):
            queues.accesses.add(access)
        for inference in caches.feature_users.find_users(features):
            queues.inferences.add(inference)

    stores.inferences.subscribe(wake_users)
    stores.accesses.subscribe(wake_callers)
    stores.features.subscribe(wake_feature_users)
    stores.features.subscribe(make_sharing_wake(stores.features, caches.feature_sharers, queues.features.add))
    OwnerIndex(stores.pods, INFERENCE_LABEL, wake_users)
    accesses.subscribe_rivals(queues.accesses.add)


def make_sharing_wake(
    features: ObjectStore, sharers: FeatureUsersIndex[FeatureCompute], wake: Callable[[ObjectKey], None]
) -> Callable[[ObjectKey], None]:
    """Return a function that wakes the FeatureComputes which use features of a changed one.

    The changed one's status does not matter to them; their own status wakes the accesses and Inferences that use them.
    """
    definitions: dict[ObjectKey, object] = {}

    def wake_users(origin: ObjectKey) -> None:
        users = sharers.find_users(origin)
        before = definitions.pop(origin, None)
        definition = _read_definition(features.get(origin))
        if users and definition is not None:
            definitions[origin] = definition
        if definition is None or definition != before:
            for user in users:
                wake(user)

    return wake_users


def _read_definition(features: Mapping[str, Any] | None) -> object:
    """Return what others that use a FeatureCompute's features depend on; None if it does not exist."""
    if features is None:
        return None
    metadata, spec = features["metadata"], features.get("spec") or {}
    return (
        metadata.get("uid"),
        metadata.get("deletionTimestamp"),
        (metadata.get("annotations") or {}).get(SHARED_WITH_ANNOTATION),
        # Its replicas, resources and stores are its own: an autoscaler that changes them wakes no users.
        *(spec.get(part) for part in DEFINITION_PARTS),
    )


def connect_pools(
    stores: Stores, queues: WorkQueues, occupancy: NodeOccupancy, sharing: GpuSharing | None
) -> None:
    """Enqueue every pool when a node, its pods, GPU sharing or any pool's spec changes; a changed status enqueues its pool alone.

    `sharing` is None where no node agents run.
    """

    def wake_all(_node: str = "") -> None:
        for pool in stores.pools.keys():  # noqa: SIM118 - a store, not a dict
            queues.pools.add(pool)

    spec_of: dict[ObjectKey, object] = {}

    def enqueue_changed_pool(key: ObjectKey) -> None:
        # Whether a node belongs to a pool depends on all pools' selectors; their statuses do not matter to others.
        spec = (stores.pools.get(key) or {}).get("spec")
        if spec_of.get(key) != spec:
            spec_of[key] = spec
            queues.pools.add(key)
            queues.allocators.add(key)
            wake_all()
        else:
            queues.pools.add(key)

    stores.pools.subscribe(enqueue_changed_pool)
    occupancy.subscribe(wake_all)
    if sharing is not None:
        sharing.subscribe(wake_all)


def connect_overrides(stores: Stores, overrides: OverrideIndex, queues: WorkQueues) -> None:
    """Enqueue a changed override's target and all allocators, and the overrides of a changed target, from now on."""

    def wake_allocators(_target: ObjectKey) -> None:
        for pool in stores.pools.keys():  # noqa: SIM118 - a store, not a dict
            queues.allocators.add(pool)

    stores.overrides.subscribe(queues.overrides.add)
    overrides.subscribe_targets(OverrideKind.INFERENCE, queues.inferences.add)
    overrides.subscribe_targets(OverrideKind.COMPUTE_POOL, queues.pools.add)
    for kind, store in (
        (OverrideKind.INFERENCE, stores.inferences),
        (OverrideKind.COMPUTE_POOL, stores.pools),
    ):
        overrides.subscribe_targets(kind, wake_allocators)
        store.subscribe(_make_override_wake(overrides, kind, queues.overrides))


def _make_override_wake(
    overrides: OverrideIndex, kind: OverrideKind, queue: WorkQueue
) -> Callable[[ObjectKey], None]:
    def wake(target: ObjectKey) -> None:
        for override in overrides.find_keys(kind, target):
            queue.add(override)

    return wake

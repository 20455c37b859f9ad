"""Which change wakes which key: the wiring between caches and work queues, and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.kube.parsed import Parsed
from tidegate.resources.names import FEATURE_COMPUTE_LABEL, INFERENCE_LABEL
from tidegate.routing.hosts import HostKind
from tidegate.runtime.workqueue import WorkQueue
from tidegate_controllers.proxies import Proxies
from tidegate_controllers.stores import Owners, Stores


@dataclass(frozen=True, slots=True)
class Queues:
    """One work queue per kind."""

    inferences: WorkQueue
    features: WorkQueue
    accesses: WorkQueue

    def all(self) -> tuple[WorkQueue, ...]:
        """Every queue."""
        return self.inferences, self.features, self.accesses

    def sources(self, stores: Stores) -> Mapping[WorkQueue, Callable[[], tuple[ObjectKey, ...]]]:
        """Where each queue's keys come from, for the first pass and for resyncs."""
        return {
            self.inferences: lambda: tuple(stores.inferences.keys()),
            self.features: lambda: tuple(stores.features.keys()),
            self.accesses: lambda: tuple(stores.accesses.keys()),
        }


def connect(stores: Stores, queues: Queues, proxies: Proxies) -> None:
    """From now on every change wakes the objects that depend on it."""
    stores.inferences.subscribe(queues.inferences.add)
    stores.features.subscribe(queues.features.add)
    stores.accesses.subscribe(queues.accesses.add)
    proxies.subscribe(HostKind.ACCESS, queues.accesses.add)
    proxies.subscribe(HostKind.FEATURES, queues.features.add)
    for store in stores.owned():
        Owners(store, INFERENCE_LABEL, queues.inferences.add)
        Owners(store, FEATURE_COMPUTE_LABEL, queues.features.add)
    users = _Users(Parsed(ModelAccess, stores.accesses), queues.accesses.add)
    stores.inferences.subscribe(users.wake)
    Owners(stores.pods, INFERENCE_LABEL, users.wake)
    rivals = _Rivals(stores, queues.accesses.add)
    stores.accesses.subscribe(rivals.wake)


class _Users:
    """The ModelAccesses that send traffic to an Inference."""

    def __init__(self, accesses: Parsed[ModelAccess], wake: Callable[[ObjectKey], None]) -> None:
        self._accesses = accesses
        self._wake = wake

    def wake(self, inference: ObjectKey) -> None:
        for access in self._accesses.all():
            if access.key.namespace == inference.namespace and inference.name in _targets(access):
                self._wake(access.key)


class _Rivals:
    """The ModelAccesses that want a host which another one has, gives up or takes."""

    def __init__(self, stores: Stores, wake: Callable[[ObjectKey], None]) -> None:
        self._accesses = Parsed(ModelAccess, stores.accesses)
        self._hosts: dict[ObjectKey, frozenset[str]] = {}
        self._wake = wake

    def wake(self, key: ObjectKey) -> None:
        access = self._accesses.get(key)
        now = frozenset(access.spec.hosts) if access is not None else frozenset[str]()
        contested = now | self._hosts.get(key, frozenset())
        self._hosts[key] = now
        if not contested:
            return
        for other in self._accesses.all():
            if other.key != key and contested & set(other.spec.hosts):
                self._wake(other.key)


def _targets(access: ModelAccess) -> frozenset[str]:
    return frozenset(target.inference for route in access.spec.routes for target in route.targets)

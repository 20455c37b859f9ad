"""The typed and indexed caches of our kinds, which outlive a term, and whom their changes affect."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from tidegate.api.compute_override import ComputeOverride, OverrideKind
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import CustomResource, ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.planning.pools.overrides import select_active, select_for_target
from tidegate.routing import hosts
from tidegate.routing.access_index import AccessIndex

Wake = Callable[[ObjectKey], None]
ResourceT = TypeVar("ResourceT", bound=CustomResource)


class IndexedAccesses:
    """Keeps an AccessIndex for the controllers; accesses that do not parse refer to nothing."""

    def __init__(self, store: ObjectStore) -> None:
        self._parsed = TypedCache(ModelAccess, store)
        self._index = AccessIndex()
        self._rivals_subscribers: list[Callable[[ObjectKey], None]] = []
        store.subscribe(self._access_changed)
        existing_keys = store.keys()
        for key in existing_keys:
            self._access_changed(key)

    def find_by_inference(self, inference: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the accesses that send traffic to an Inference, or would if it existed."""
        return self._index.accesses_for_inference(inference)

    def get(self, key: ObjectKey) -> ModelAccess | None:
        """Return an access; None if it does not exist or does not parse."""
        return self._parsed.get(key)

    def find_by_features(self, features: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the accesses with a pipeline that queries a FeatureCompute, or would if it existed."""
        return self._index.accesses_for_features(features)

    def find_callers(self, access: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the accesses with a pipeline that calls another access, or would if it existed."""
        return self._index.accesses_calling(access)

    def claim_hosts(self, access: ModelAccess) -> Mapping[str, ObjectKey]:
        """Return the access that each host in the spec of `access` leads to (routing.hosts.find_host_owners).

        As in the xDS servers, an object that is being deleted holds no host.
        """
        candidates = (self._parsed.get(key) for key in self._index.host_rivals(access))
        rivals = [
            candidate
            for candidate in candidates
            if candidate is not None and candidate.metadata.deletion_timestamp is None
        ]
        return hosts.find_host_owners([access, *rivals])

    def subscribe_rivals(self, subscriber: Callable[[ObjectKey], None]) -> None:
        """Call `subscriber` with every access whose hosts are affected because another access claims or releases one."""
        self._rivals_subscribers.append(subscriber)

    def _access_changed(self, key: ObjectKey) -> None:
        for affected in sorted(self._index.put(key, self._parsed.get(key))):
            for subscriber in self._rivals_subscribers:
                subscriber(affected)


class FeatureUsersIndex(Generic[ResourceT]):
    """Finds the objects of one kind that use a FeatureCompute; `list_used` returns what an object names."""

    def __init__(
        self, parsed: TypedCache[ResourceT], list_used: Callable[[ResourceT], Iterable[ObjectKey]]
    ) -> None:
        self._parsed = parsed
        self._list_used = list_used
        self._used: dict[ObjectKey, frozenset[ObjectKey]] = {}
        self._users: defaultdict[ObjectKey, set[ObjectKey]] = defaultdict(set)
        parsed.store.subscribe(self._user_changed)
        existing_keys = parsed.store.keys()
        for key in existing_keys:
            self._user_changed(key)

    def find_users(self, features: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the objects that name a FeatureCompute, whether it exists or not."""
        return tuple(sorted(self._users.get(features, ())))

    def _user_changed(self, key: ObjectKey) -> None:
        user = self._parsed.get(key)
        for before in self._used.pop(key, ()):
            self._users[before].discard(key)
            if not self._users[before]:
                del self._users[before]
        used = frozenset(self._list_used(user)) if user is not None else frozenset[ObjectKey]()
        if used:
            self._used[key] = used
        for compute in used:
            self._users[compute].add(key)


@dataclass(frozen=True, slots=True)
class TypedCaches:
    """The caches that a ModelAccess is planned from, and the Inferences and FeatureComputes that use a FeatureCompute."""

    inferences: TypedCache[Inference]
    features: TypedCache[FeatureCompute]
    accesses: IndexedAccesses
    feature_users: FeatureUsersIndex[Inference]
    feature_sharers: FeatureUsersIndex[FeatureCompute]


class OverrideIndex:
    """Finds overrides by target; there are few, so that each call goes through all of them."""

    def __init__(self, parsed: TypedCache[ComputeOverride]) -> None:
        self._parsed = parsed
        self._targets: dict[ObjectKey, tuple[OverrideKind, ObjectKey]] = {}
        self._wakes: list[tuple[OverrideKind, Wake]] = []
        parsed.store.subscribe(self._override_changed)

    def subscribe_targets(self, kind: OverrideKind, wake: Wake) -> None:
        """Call `wake` with each target of that kind whose overrides change."""
        self._wakes.append((kind, wake))

    def get(self, key: ObjectKey) -> ComputeOverride | None:
        """Return an override; None if it does not exist or does not parse."""
        return self._parsed.get(key)

    def list_all(self) -> tuple[ComputeOverride, ...]:
        """Return all overrides that parse."""
        return self._parsed.list_all()

    def find_active(self, kind: OverrideKind, key: ObjectKey, now: datetime) -> tuple[ComputeOverride, ...]:
        """Return the active overrides of one object."""
        return select_for_target(select_active(self.list_all(), now), kind, key)

    def find_keys(self, kind: OverrideKind, key: ObjectKey) -> tuple[ObjectKey, ...]:
        """Return the keys of all overrides with this target, active or ended."""
        return tuple(override.key for override in select_for_target(self.list_all(), kind, key))

    def _override_changed(self, key: ObjectKey) -> None:
        override = self._parsed.get(key)
        before = self._targets.pop(key, None)
        now = None
        if override is not None:
            now = self._targets[key] = (override.spec.target.kind, override.spec.target.key)
        for kind, target in {item for item in (before, now) if item is not None}:
            for connected_kind, wake in self._wakes:
                if connected_kind is kind:
                    wake(target)

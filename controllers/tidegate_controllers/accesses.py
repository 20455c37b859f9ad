"""Indexes the cache of ModelAccesses, and notifies accesses that another one's change affects."""

from collections.abc import Callable, Mapping

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.kube.store import ObjectStore
from tidegate.kube.typed_cache import TypedCache
from tidegate.routing import hosts
from tidegate.routing.access_index import AccessIndex


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

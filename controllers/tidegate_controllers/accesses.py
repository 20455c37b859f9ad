"""The index over the cache of ModelAccesses, kept up with every change; it wakes those that another one's change concerns."""

from collections.abc import Callable, Mapping

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.kube.parsed import Parsed
from tidegate.kube.store import ObjectStore
from tidegate.routing import hosts
from tidegate.routing.access_index import AccessIndex


class Accesses:
    """Keeps an AccessIndex for the controllers; accesses that do not parse refer to nothing."""

    def __init__(self, store: ObjectStore) -> None:
        self._parsed = Parsed(ModelAccess, store)
        self._index = AccessIndex()
        self._rivals_subscribers: list[Callable[[ObjectKey], None]] = []
        store.subscribe(self._changed)
        already_there = store.keys()
        for key in already_there:
            self._changed(key)

    def using(self, inference: ObjectKey) -> tuple[ObjectKey, ...]:
        """Those that send traffic to an Inference, or would if it existed."""
        return self._index.using(inference)

    def get(self, key: ObjectKey) -> ModelAccess | None:
        """One access; None when there is none or it does not parse."""
        return self._parsed.get(key)

    def looking_up(self, features: ObjectKey) -> tuple[ObjectKey, ...]:
        """Those with a pipeline that asks a FeatureCompute, or would if it existed."""
        return self._index.looking_up(features)

    def calling(self, access: ObjectKey) -> tuple[ObjectKey, ...]:
        """Those with a pipeline that calls another access, or would if it existed."""
        return self._index.calling(access)

    def owners(self, access: ModelAccess) -> Mapping[str, ObjectKey]:
        """For every host in the spec of `access`, the access that it leads to (routing.hosts.claim).

        As in the fleet of the xDS servers, an object that is being deleted holds no host any more.
        """
        found = (self._parsed.get(key) for key in self._index.rivals(access))
        rivals = [one for one in found if one is not None and one.metadata.deletion_timestamp is None]
        return hosts.claim([access, *rivals])

    def subscribe_rivals(self, subscriber: Callable[[ObjectKey], None]) -> None:
        """Calls `subscriber` with every access that wants a host which another one has, gives up or takes."""
        self._rivals_subscribers.append(subscriber)

    def _changed(self, key: ObjectKey) -> None:
        for other in sorted(self._index.put(key, self._parsed.get(key))):
            for subscriber in self._rivals_subscribers:
                subscriber(other)

"""The events in a pod's store as a source of the feature engine."""

from pathlib import Path

from tidegate_dataplane.contract import EntityKeyType, EventStream, FeaturePlan
from tidegate_dataplane.event_store.rows import encode_keys
from tidegate_dataplane.event_store.store import EventStore
from tidegate_dataplane.features.events import Array, EventSource, SelectedEvents, join_rows


class StoredEvents:
    """The events of one stream in a pod's store, for the feature engine."""

    def __init__(self, store: EventStore, stream: EventStream, key_type: EntityKeyType) -> None:
        self._store = store
        self._stream = stream
        self._key_type = key_type

    def read_events(self, keys: Array) -> SelectedEvents:
        """Return the events of each key; int64 or bytes objects [n] in."""
        encoded = encode_keys(keys, self._key_type)
        return join_rows(self._stream, self._store.read_rows(self._stream.name, encoded))


def open_stored_events(plan: FeaturePlan, folder: Path) -> dict[str, EventSource]:
    """Return the events of each stream of the plan in the store in `folder`.

    Raises:
        lmdb.Error: there is no store.
    """
    store = EventStore(folder, plan.streams)
    key_types = {entity.name: entity.type for entity in plan.entities}
    return {stream.name: StoredEvents(store, stream, key_types[stream.entity]) for stream in plan.streams}

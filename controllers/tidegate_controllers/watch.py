"""kopf as the watcher of our kinds: every event refreshes a cache and thereby wakes a work queue."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import kopf

from tidegate.api.meta import GROUP, VERSION
from tidegate.kube.store import ObjectStore

_WATCH_S: Final = 290
"""The server ends a watch by itself after this long, so that a silently dead one cannot last."""
_INACTIVE_S: Final = 310


def register(registry: kopf.OperatorRegistry, stores: Iterable[ObjectStore]) -> None:
    """Lets kopf feed the stores of our kinds. Nothing is decided here."""

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        settings.watching.server_timeout = _WATCH_S
        settings.watching.client_timeout = _INACTIVE_S
        settings.watching.connect_timeout = 10
        settings.networking.request_timeout = 30
        settings.networking.connect_timeout = 10
        settings.posting.enabled = False  # events are ours: kopf would post its own log lines
        settings.scanning.disabled = True  # the CRDs are the chart's: there is nothing to discover

    for store in stores:
        _feed(registry, store)


def _feed(registry: kopf.OperatorRegistry, store: ObjectStore) -> None:
    @kopf.on.event(GROUP, VERSION, store.kind.plural, registry=registry)
    def changed(event: Mapping[str, Any], **_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        store.observe(cast("str | None", event["type"]), event["object"])

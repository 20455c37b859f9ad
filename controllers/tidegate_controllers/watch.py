"""kopf as the watcher of our kinds: every event refreshes a cache and thereby wakes a work queue."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, cast

import kopf

from tidegate.api.meta import GROUP, VERSION
from tidegate.kube.backoff import Backoff
from tidegate.kube.store import ObjectStore
from tidegate_controllers.kopf_session import PAUSE, Forever, Login

_WATCH_S: Final = 290
"""The server ends a watch by itself after this long, so that a silently dead one cannot last."""
_INACTIVE_S: Final = 310
_REQUEST_S: Final = 30
_PAGE: Final = 250
"""Objects of a listing that are in memory at once."""
_IDLE_S: Final = 0.1
"""kopf keeps a task and a queue for so long after an object's last event: after a listing, for each object that there is."""


async def watch(stores: Iterable[ObjectStore], identity: str, namespaces: Collection[str] = ()) -> None:
    """Feeds the stores of our kinds until the process is told to stop (kopf takes SIGTERM and SIGINT).

    With `namespaces`, from those alone; then the stores must be of kinds that have one.
    """
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry, id="session")(Login().open_session)
    for store in stores:
        _feed(registry, store)
    # One replica of this process leads by a Lease of our own, so kopf needs no peering; without a name it would
    # look its user up, and the image's has none.
    await kopf.operator(
        registry=registry,
        settings=_settings(),
        identity=cast("Any", identity),  # a NewType over str that kopf keeps private
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )


def _feed(registry: kopf.OperatorRegistry, store: ObjectStore) -> None:
    @kopf.on.event(GROUP, VERSION, store.kind.plural, registry=registry)
    async def changed(event: Mapping[str, Any], **_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        # A coroutine, though it awaits nothing: kopf calls plain functions in threads of a pool.
        store.observe(cast("str | None", event["type"]), event["object"])


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.watching.server_timeout = _WATCH_S
    settings.watching.client_timeout = _INACTIVE_S
    settings.watching.connect_timeout = _REQUEST_S
    settings.networking.request_timeout = _REQUEST_S
    settings.networking.connect_timeout = _REQUEST_S
    settings.networking.error_backoffs = Forever(Backoff(cap=PAUSE))
    settings.watching.chunk_size = _PAGE
    settings.queueing.idle_timeout = _IDLE_S
    settings.posting.enabled = False  # events are ours: kopf would post its own log lines
    settings.scanning.disabled = True  # the CRDs are the chart's: there is nothing to discover at run time
    return settings

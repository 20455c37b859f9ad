"""kopf as the watcher of our kinds: every event updates a cache and thereby a work queue."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, cast

import kopf

from tidegate.api.meta import GROUP, VERSION
from tidegate.kube.backoff import Backoff
from tidegate.kube.store import ObjectStore
from tidegate_controllers.kopf_session import MAX_RETRY_DELAY, EndlessBackoffs, KopfLogin

_WATCH_S: Final = 290
"""The server ends a watch after this time, so that a dead connection cannot last."""
_INACTIVE_S: Final = 310
_REQUEST_S: Final = 30
_PAGE: Final = 250
"""Objects of a listing that are in memory at the same time."""
_IDLE_S: Final = 0.1
"""kopf keeps a task and a queue per object for this long after its last event: after a listing, for all objects."""


async def watch_objects(
    stores: Iterable[ObjectStore], identity: str, namespaces: Collection[str] = ()
) -> None:
    """Feed the stores of our kinds until the process is told to stop (kopf handles SIGTERM and SIGINT).

    With `namespaces`, watch those only; then the stores must be of namespaced kinds.
    """
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry, id="session")(KopfLogin().open_session)
    for store in stores:
        _feed_store(registry, store)
    # Our own Lease elects the leader, so kopf needs no peering. Without an identity, kopf would look up the user's
    # name, and the image's user has none.
    await kopf.operator(
        registry=registry,
        settings=_kopf_settings(),
        identity=cast("Any", identity),  # a NewType over str that kopf keeps private
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
    )


def _feed_store(registry: kopf.OperatorRegistry, store: ObjectStore) -> None:
    @kopf.on.event(GROUP, VERSION, store.kind.plural, registry=registry)
    async def changed(event: Mapping[str, Any], **_: object) -> None:  # pyright: ignore[reportUnusedFunction]
        # A coroutine, though it awaits nothing, since kopf calls plain functions in threads of a pool.
        store.observe(cast("str | None", event["type"]), event["object"])


def _kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.watching.server_timeout = _WATCH_S
    settings.watching.client_timeout = _INACTIVE_S
    settings.watching.connect_timeout = _REQUEST_S
    settings.networking.request_timeout = _REQUEST_S
    settings.networking.connect_timeout = _REQUEST_S
    settings.networking.error_backoffs = EndlessBackoffs(Backoff(cap=MAX_RETRY_DELAY))
    settings.watching.chunk_size = _PAGE
    settings.queueing.idle_timeout = _IDLE_S
    settings.posting.enabled = False  # kopf would post its own log lines as Events
    settings.scanning.disabled = True  # the chart installs the CRDs: nothing changes at run time
    return settings

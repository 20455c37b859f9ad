"""Reports to users, by Events on their objects, what the caches leave out and which reconciles crash."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.kube.kinds import Kind
from tidegate.kube.port import ClusterApi, EventNote
from tidegate.kube.store import LeftOutObject, ObjectStore, uid_of
from tidegate.planning.plan import EventType
from tidegate.runtime.clock import Clock

_CHECK_INTERVAL_S: Final = 10.0
_MAX_EVENTS_PER_CHECK: Final = 20
"""Limits the time that a user who breaks a thousand objects can cost."""


async def report_left_out(cluster: ClusterApi, stores: Iterable[ObjectStore], clock: Clock) -> None:
    """Create an Event about each left-out object, once per reason, until cancelled."""
    all_stores = tuple(stores)
    reported: dict[tuple[Kind, ObjectKey], LeftOutObject] = {}
    while True:
        current = {
            (store.kind, key): left_out for store in all_stores for key, left_out in store.left_out.items()
        }
        reported = {item: left_out for item, left_out in reported.items() if current.get(item) == left_out}
        for kind, key in tuple(islice(current.keys() - reported.keys(), _MAX_EVENTS_PER_CHECK)):
            reported[kind, key] = current[kind, key]
            await cluster.create_event(_build_note(kind, key, current[kind, key]))
        await clock.sleep(_CHECK_INTERVAL_S)


def _build_note(kind: Kind, key: ObjectKey, left_out: LeftOutObject) -> EventNote:
    message = f"Tidegate cannot read this {kind.kind} and takes it as it was before, or as absent: {left_out.problem}"
    return EventNote(kind, key, left_out.uid, EventType.WARNING, Reason.OBJECT_LEFT_OUT, message)


async def report_crash(
    cluster: ClusterApi, store: ObjectStore, queue: str, key: ObjectKey, error: Exception
) -> None:
    """Create an Event about an object of `store` whose reconcile in `queue` raised an unexpected exception.

    It has the exception's type alone, because its message may quote the content of a Secret, and so is the same for each
    attempt.
    """
    body = store.get(key)
    if body is None:
        return
    message = (
        f"Queue {queue} cannot reconcile this {store.kind.kind} because of an unexpected {type(error).__name__}, a bug in Tidegate. "
        "It tries again at growing intervals; the log of the controllers has the traceback (reconcile_crashed)."
    )
    note = EventNote(store.kind, key, uid_of(body), EventType.WARNING, Reason.RECONCILE_CRASHED, message)
    await cluster.create_event(note)

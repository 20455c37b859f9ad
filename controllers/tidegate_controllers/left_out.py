"""Tells users which of their objects the caches leave out, by an event on each."""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.kube.kinds import Kind
from tidegate.kube.port import Cluster, EventNote
from tidegate.kube.store import LeftOut, ObjectStore
from tidegate.planning.plan import EventType
from tidegate.runtime.clock import Clock

_LOOK_EVERY_S: Final = 10.0
_MOST_AT_ONCE: Final = 20
"""Somebody who breaks a thousand objects is not to keep us from anything else."""


async def tell_of_left_out(cluster: Cluster, stores: Iterable[ObjectStore], clock: Clock) -> None:
    """Looks for such objects again and again, until cancelled; of each it is told once, and again when the reason changes."""
    known = tuple(stores)
    told: dict[tuple[Kind, ObjectKey], LeftOut] = {}
    while True:
        now = {(store.kind, key): one for store in known for key, one in store.left_out.items()}
        told = {each: one for each, one in told.items() if now.get(each) == one}
        for kind, key in tuple(islice(now.keys() - told.keys(), _MOST_AT_ONCE)):
            told[kind, key] = now[kind, key]
            await cluster.create_event(_note(kind, key, now[kind, key]))
        await clock.sleep(_LOOK_EVERY_S)


def _note(kind: Kind, key: ObjectKey, one: LeftOut) -> EventNote:
    message = f"Tidegate cannot read this {kind.kind} and takes it as it was before, or as absent: {one.why}"
    return EventNote(kind, key, one.uid, EventType.WARNING, Reason.OBJECT_LEFT_OUT, message)

"""What the pages of all objects have alike: manifest, events and pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import Request

from tidegate.api.meta import ObjectKey
from tidegate.errors import TidegateError
from tidegate.kube.kinds import EVENT
from tidegate.web.access.rights import Action
from tidegate.web.plurals import Plural
from tidegate.web.visitor import Visitor

_EVENTS_SHOWN: Final = 20
_PODS_SHOWN: Final = 100


async def of_object(visitor: Visitor, plural: Plural, key: ObjectKey, request: Request) -> dict[str, Any]:
    """What every object's page has: its manifest, its events, and what it listens to."""
    body = visitor.parts.fleet.catalogues()[plural].store.get(key) or {}
    events = await _events(visitor, body) if "hx-request" not in request.headers else None
    topics = [f"{plural.value}/{key}"]
    if plural is not Plural.POOLS:
        topics.append("traffic")
    if plural in {Plural.INFERENCES, Plural.POOLS}:
        topics += [
            each for each in ("computeoverrides", "allocationdecisions") if await _hears(visitor, each)
        ]
    return {"body": body, "events": events, "topics": topics}


async def pods_of(visitor: Visitor, label: str, key: ObjectKey) -> Sequence[Mapping[str, Any]] | None:
    """Some of them; None where the visitor may not list pods there."""
    if not await visitor.may(Action("list", "pods", key.namespace, group="")):
        return None
    return visitor.parts.fleet.pods.by_label(label, key.name, namespace=key.namespace)[:_PODS_SHOWN]


async def _hears(visitor: Visitor, plural: str) -> bool:
    """A stream with one topic that the visitor may not follow is refused whole."""
    listing = visitor.parts.listings[plural]
    within = await visitor.parts.rights.within(visitor.identity, plural, listing.namespaces())
    return within is None or bool(within)


async def _events(visitor: Visitor, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | str:
    """The newest, as the visitor may read them; or why not."""
    metadata: Mapping[str, Any] = body.get("metadata") or {}
    namespace = metadata.get("namespace") or "default"
    fields = f"involvedObject.uid={metadata.get('uid', '')}"
    try:
        async with asyncio.timeout(2):
            found = await visitor.client.list(EVENT, namespace=namespace, fields=fields)
    except TimeoutError:
        return "events cannot be read: the API server took longer than 2 s"
    except TidegateError as error:
        return f"events cannot be read: {error}"
    return sorted(found, key=_last_seen, reverse=True)[:_EVENTS_SHOWN]


def _last_seen(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")

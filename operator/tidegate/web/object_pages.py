"""Read what the pages of all objects show: manifest, events and pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import Request

from tidegate.api.meta import ObjectKey
from tidegate.errors import TidegateError
from tidegate.kube.kinds import EVENT
from tidegate.web.access.rights import Action
from tidegate.web.listing import Plural
from tidegate.web.request_context import RequestContext

_EVENTS_SHOWN: Final = 20
_PODS_SHOWN: Final = 100


async def object_variables(
    context: RequestContext, plural: Plural, key: ObjectKey, request: Request
) -> dict[str, Any]:
    """Return the template variables of every object's page: its manifest, its events, and the topics to subscribe to."""
    body = context.app.fleet.caches_by_plural()[plural].store.get(key) or {}
    events = await _list_events(context, body) if "hx-request" not in request.headers else None
    topics = [f"{plural.value}/{key}"]
    if plural is not Plural.POOLS:
        topics.append("traffic")
    if plural in {Plural.INFERENCES, Plural.POOLS}:
        topics += [
            kind
            for kind in ("computeoverrides", "allocationdecisions")
            if await _may_list_some(context, kind)
        ]
    return {"body": body, "events": events, "topics": topics}


async def list_pods(
    context: RequestContext, label: str, key: ObjectKey
) -> Sequence[Mapping[str, Any]] | None:
    """Return the first hundred pods of an object; None if the user may not list pods in its namespace."""
    if not await context.is_allowed(Action("list", "pods", key.namespace, group="")):
        return None
    return context.app.fleet.pods.by_label(label, key.name, namespace=key.namespace)[:_PODS_SHOWN]


async def _may_list_some(context: RequestContext, plural: str) -> bool:
    # A stream with a single forbidden topic is rejected as a whole.
    listing = context.app.listings[plural]
    within = await context.app.rights.filter_namespaces(context.identity, plural, listing.list_namespaces())
    return within is None or bool(within)


async def _list_events(context: RequestContext, body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | str:
    """Return the newest events of an object, read with the user's rights; or an error message."""
    metadata: Mapping[str, Any] = body.get("metadata") or {}
    namespace = metadata.get("namespace") or "default"
    fields = f"involvedObject.uid={metadata.get('uid', '')}"
    try:
        async with asyncio.timeout(2):
            events = await context.client.list(EVENT, namespace=namespace, fields=fields)
    except TimeoutError:
        return "events cannot be read: the API server did not respond within 2 s"
    except TidegateError as error:
        return f"events cannot be read: {error}"
    return sorted(events, key=_last_seen, reverse=True)[:_EVENTS_SHOWN]


def _last_seen(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")

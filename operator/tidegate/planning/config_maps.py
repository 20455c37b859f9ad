"""The ConfigMaps that starting pods read: which text is there, and which of them nobody reads any more."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.planning.plan import Deletion
from tidegate.planning.pods import PodView
from tidegate.resources.names import SOURCE_LABEL
from tidegate.resources.pod import DESIRED_FILE


def start_text(config_maps: Sequence[Mapping[str, Any]], source: str) -> str | None:
    """The DesiredState JSON in the ConfigMap of this source, if there is one."""
    for body in config_maps:
        if _source(body) == source:
            return (body.get("data") or {}).get(DESIRED_FILE)
    return None


def stale(
    config_maps: Sequence[Mapping[str, Any]],
    pods: Sequence[PodView],
    source: str,
    kept: Collection[str] = (),
) -> tuple[Deletion, ...]:
    """ConfigMaps of earlier sources that no pod reads any more, and none may read again (`kept`)."""
    in_use = {pod.source for pod in pods} | {source, *kept}
    return tuple(
        Deletion(
            "ConfigMap",
            ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"]),
            body["metadata"]["uid"],
        )
        for body in config_maps
        if _source(body) not in in_use
    )


def _source(body: Mapping[str, Any]) -> str | None:
    return (body["metadata"].get("labels") or {}).get(SOURCE_LABEL)

"""Find the ConfigMap that starting pods read, and those that no pod reads any more."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.planning.plan import Deletion
from tidegate.planning.pods import PodView
from tidegate.resources.names import SOURCE_LABEL
from tidegate.resources.pod import DESIRED_FILE


def start_text(config_maps: Sequence[Mapping[str, Any]], source: str) -> str | None:
    """Return the DesiredState JSON in the ConfigMap of this source; None if there is none."""
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
    """Return deletions of the ConfigMaps that no pod reads now, nor may read again (`retained`)."""
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

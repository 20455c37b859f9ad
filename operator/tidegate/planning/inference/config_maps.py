"""Find the ConfigMap that starting pods read, and those that no pod reads any more."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tidegate.api.meta import ObjectKey
from tidegate.planning.plan import ObjectDeletion
from tidegate.planning.pods import PodView
from tidegate.resources.names import SOURCE_LABEL
from tidegate.resources.pod import DESIRED_FILE


def find_start_text(config_maps: Sequence[Mapping[str, Any]], source: str) -> str | None:
    """Return the DesiredState JSON in the ConfigMap of this source; None if there is none."""
    for body in config_maps:
        if _get_source(body) == source:
            return (body.get("data") or {}).get(DESIRED_FILE)
    return None


def delete_stale(
    config_maps: Sequence[Mapping[str, Any]],
    pods: Sequence[PodView],
    source: str,
    retained: Collection[str] = (),
) -> tuple[ObjectDeletion, ...]:
    """Return deletions of the ConfigMaps that no pod reads now, nor may read again (`retained`)."""
    in_use = {pod.source for pod in pods} | {source, *retained}
    return tuple(
        ObjectDeletion(
            "ConfigMap",
            ObjectKey(body["metadata"]["namespace"], body["metadata"]["name"]),
            body["metadata"]["uid"],
        )
        for body in config_maps
        if _get_source(body) not in in_use
    )


def _get_source(body: Mapping[str, Any]) -> str | None:
    return (body["metadata"].get("labels") or {}).get(SOURCE_LABEL)

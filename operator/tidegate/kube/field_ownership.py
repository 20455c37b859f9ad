"""Fields of an object that was created, not applied: they become those of the applier before the first change.

Whoever creates an object owns its fields by the operation Update, and an apply by the same manager owns them by Apply. An apply takes
away only what it owned, so that without this a field that is no longer wanted would stay. client-go's csaupgrade does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.kube.fence import CREATED_ANNOTATION, EPOCH_ANNOTATION
from tidegate.kube.port import Manifest


def was_created(live: Manifest) -> bool:
    """Whether an object still is as it was created, so that its fields must become ours before it is applied."""
    return CREATED_ANNOTATION in (live["metadata"].get("annotations") or {})


def taking_over(live: Manifest, manager: str, epoch: int) -> Mapping[str, Any]:
    """The merge patch after which the fields that `manager` has created count as applied by it.

    It holds for the resourceVersion of `live`, which must have its managedFields.
    """
    metadata = live["metadata"]
    ours, others = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for entry in metadata.get("managedFields") or ():
        mine = entry.get("manager") == manager and not entry.get("subresource")
        (ours if mine else others).append(entry)
    fields: Mapping[str, Any] = {}
    for entry in ours:
        fields = _union(fields, entry.get("fieldsV1") or {})
    applied = [{**ours[-1], "operation": "Apply", "fieldsV1": fields}] if ours else []
    return {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "managedFields": [*others, *applied],
            "annotations": {CREATED_ANNOTATION: None, EPOCH_ANNOTATION: str(epoch)},
        }
    }


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """All fields of two sets, each a tree of names."""
    return {
        name: _union(one.get(name) or {}, other.get(name) or {})
        for name in (*one, *(other.keys() - one.keys()))
    }

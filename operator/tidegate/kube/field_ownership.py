"""Moves the fields of a created object to server-side apply before they are first changed.

Create records the owner of fields with the operation Update, and apply by the same manager records Apply.
An apply removes only fields that it owned, so without this a field that we drop would stay.
client-go's csaupgrade does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.kube.fence import CREATED_ANNOTATION, EPOCH_ANNOTATION
from tidegate.kube.port import Manifest


def was_created(live: Manifest) -> bool:
    """Return whether an object is as it was created, so that its fields must be taken over before it is applied."""
    return CREATED_ANNOTATION in (live["metadata"].get("annotations") or {})


def take_over_patch(live: Manifest, manager: str, epoch: int) -> Mapping[str, Any]:
    """Return the merge patch after which the fields that `manager` created count as applied by it.

    It is valid for the resourceVersion of `live`, which must include managedFields.
    """
    metadata = live["metadata"]
    own_entries, other_entries = list[Mapping[str, Any]](), list[Mapping[str, Any]]()
    for entry in metadata.get("managedFields") or ():
        is_own = entry.get("manager") == manager and not entry.get("subresource")
        (own_entries if is_own else other_entries).append(entry)
    fields: Mapping[str, Any] = {}
    for entry in own_entries:
        fields = _merge_fields(fields, entry.get("fieldsV1") or {})
    applied = [{**own_entries[-1], "operation": "Apply", "fieldsV1": fields}] if own_entries else []
    return {
        "metadata": {
            "resourceVersion": metadata["resourceVersion"],
            "managedFields": [*other_entries, *applied],
            "annotations": {CREATED_ANNOTATION: None, EPOCH_ANNOTATION: str(epoch)},
        }
    }


def _merge_fields(first: Mapping[str, Any], second: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return all fields of two field sets, each a tree of names."""
    return {
        name: _merge_fields(first.get(name) or {}, second.get(name) or {})
        for name in (*first, *(second.keys() - first.keys()))
    }

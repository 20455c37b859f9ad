"""Whether a live object still is what we applied: the question that keeps a settled cluster free of writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.api.quantities import parse_quantity
from tidegate.kube.fence import APPLIED_ANNOTATION, CREATED_ANNOTATION, EPOCH_ANNOTATION
from tidegate.kube.port import Manifest

_OURS: Final = frozenset({APPLIED_ANNOTATION, CREATED_ANNOTATION, EPOCH_ANNOTATION})
# Below these keys strings are quantities, which the API server rewrites: 1000m comes back as 1.
_QUANTITY_HOLDERS: Final = frozenset({"limits", "requests", "sizeLimit", "storage"})
# Fields that are said when an object is made and are somebody else's from then on: Kueue starts and stops a Job.
_ONLY_AT_FIRST: Final[Mapping[str, frozenset[str]]] = {"Job": frozenset({"suspend"})}
# The keys by which server-side apply merges the lists that we write.
_MERGE_KEYS: Final = ("name", "mountPath", "uid", "containerPort", "port", "key")


def needs_apply(desired: Manifest, live: Manifest | None) -> bool:
    """Whether `desired` must be applied again.

    True when there is no live object, when we last wrote something else (so that a field we no longer want
    goes away), or when somebody changed a field of ours. Fields that others added do not count.
    """
    if live is None:
        return True
    annotations = live.get("metadata", {}).get("annotations") or {}
    wrote = annotations.get(CREATED_ANNOTATION, annotations.get(APPLIED_ANNOTATION))
    return wrote != digest(desired) or not is_subset(_lasting(desired), live)


def over(live: Manifest | None, desired: Manifest) -> Manifest:
    """What to send so that `live` becomes `desired`: fields that are said only at first stay as they are.

    Leaving such a field out would take it away where it is still ours, and saying what it was is right only while that
    is so: the resourceVersion makes a change in between a conflict.
    """
    first = _ONLY_AT_FIRST.get(str(desired.get("kind")), frozenset()) & desired.get("spec", {}).keys()
    if live is None or not first:
        return desired
    kept = {name: live["spec"][name] for name in first if live.get("spec", {}).get(name)}
    lasting = _lasting(desired)
    return {
        **lasting,
        "metadata": {**lasting["metadata"], "resourceVersion": live["metadata"]["resourceVersion"]},
        "spec": {**lasting["spec"], **kept},
    }


def digest(manifest: Manifest) -> str:
    """What the annotations `tidegate.io/applied` and `tidegate.io/created` hold: a short hash of the manifest.

    Our own annotations, what is said only at first and the resourceVersion are no part of it.
    """
    text = json.dumps(
        _without_ours(_lasting(manifest)), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stamped(manifest: Manifest, epoch: int, wrote: str = APPLIED_ANNOTATION) -> dict[str, Any]:
    """`manifest` with the annotations that say what was written, how, and in which term of leadership.

    `wrote` is the annotation for an object that is applied, or the one for an object that is created.
    """
    metadata: Mapping[str, Any] = manifest.get("metadata", {})
    annotations = {
        **(metadata.get("annotations") or {}),
        wrote: digest(manifest),
        EPOCH_ANNOTATION: str(epoch),
    }
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def is_subset(desired: Any, live: Any, *, quantity: bool = False) -> bool:
    """Whether everything in `desired` is in `live`: mappings by key, lists by name or else element by element.

    An empty value (nothing, zero, false) equals an absent field, since the API server drops those.
    """
    if live is None and not desired:
        return True
    if isinstance(desired, Mapping):
        return isinstance(live, Mapping | None) and _is_submapping(desired, live or {}, quantity=quantity)
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return isinstance(live, Sequence) and _is_sublist(desired, live, quantity=quantity)
    return desired == live or (quantity and _same_quantity(str(desired), str(live)))


def _is_submapping(desired: Mapping[str, Any], live: Mapping[str, Any], *, quantity: bool) -> bool:
    return all(
        is_subset(value, live.get(name), quantity=quantity or name in _QUANTITY_HOLDERS)
        for name, value in desired.items()
        if name not in _OURS
    )


def _is_sublist(desired: Sequence[Any], live: Sequence[Any], *, quantity: bool) -> bool:
    key = _merge_key(desired, live)
    if key is not None:
        theirs = {item[key]: item for item in live}
        return all(is_subset(item, theirs.get(item[key], ()), quantity=quantity) for item in desired)
    return len(desired) == len(live) and all(
        is_subset(ours, theirs, quantity=quantity) for ours, theirs in zip(desired, live, strict=True)
    )


def _merge_key(*lists: Sequence[Any]) -> str | None:
    """The key that tells the items of these lists apart, if one does: then others may add items of their own."""
    return next((key for key in _MERGE_KEYS if all(_is_keyed_by(key, items) for items in lists)), None)


def _is_keyed_by(key: str, items: Sequence[Any]) -> bool:
    values = [item.get(key) if isinstance(item, Mapping) else None for item in items]
    return all(isinstance(value, str | int) for value in values) and len(set(values)) == len(values)


def _same_quantity(ours: str, theirs: str) -> bool:
    try:
        return parse_quantity(ours) == parse_quantity(theirs)
    except ValueError:
        return False


def _lasting(manifest: Manifest) -> Manifest:
    """`manifest` without what is said only at first."""
    first = _ONLY_AT_FIRST.get(str(manifest.get("kind")), frozenset())
    if not first & manifest.get("spec", {}).keys():
        return manifest
    spec = {name: value for name, value in manifest["spec"].items() if name not in first}
    return {**manifest, "spec": spec}


def _without_ours(manifest: Manifest) -> Manifest:
    metadata: Mapping[str, Any] = manifest.get("metadata", {})
    annotations: Mapping[str, Any] = metadata.get("annotations") or {}
    others = {
        name: value for name, value in metadata.items() if name not in {"annotations", "resourceVersion"}
    }
    kept = {name: value for name, value in annotations.items() if name not in _OURS}
    return {**manifest, "metadata": {**others, "annotations": kept} if kept else others}

"""Compare a desired manifest with the live object, so that an unchanged object costs no write."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tidegate.api.quantities import parse_quantity
from tidegate.kube.fence import APPLIED_ANNOTATION, CREATED_ANNOTATION, EPOCH_ANNOTATION
from tidegate.kube.port import Manifest

_OWN_ANNOTATIONS: Final = frozenset({APPLIED_ANNOTATION, CREATED_ANNOTATION, EPOCH_ANNOTATION})
# Below these keys strings are quantities, which the API server rewrites: 1000m comes back as 1.
_QUANTITY_HOLDERS: Final = frozenset({"limits", "requests", "sizeLimit", "storage"})
# Fields that we set at creation only; another controller owns them afterwards. Kueue suspends and resumes Jobs.
_CREATION_ONLY: Final[Mapping[str, frozenset[str]]] = {"Job": frozenset({"suspend"})}
# The keys by which server-side apply merges the lists that we write.
_MERGE_KEYS: Final = ("name", "mountPath", "uid", "containerPort", "port", "key")


def needs_apply(desired: Manifest, live: Manifest | None) -> bool:
    """Return whether `desired` must be applied again.

    True if there is no live object, if we last wrote another manifest (so that a field we have dropped is
    removed), or if somebody changed a field of ours. Fields that others added do not count.
    """
    if live is None:
        return True
    annotations = live.get("metadata", {}).get("annotations") or {}
    applied_digest = annotations.get(CREATED_ANNOTATION, annotations.get(APPLIED_ANNOTATION))
    return applied_digest != compute_digest(desired) or not is_subset(_drop_creation_only(desired), live)


def merge_onto_live(live: Manifest | None, desired: Manifest) -> Manifest:
    """Return the manifest to apply so that `live` becomes `desired`, with creation-only fields as they are live.

    To omit such a field would remove it if we still own it. To repeat its value is right only while the value
    stays, so the manifest carries the resourceVersion and a concurrent change becomes a conflict.
    """
    creation_only = _CREATION_ONLY.get(str(desired.get("kind")), frozenset()) & desired.get("spec", {}).keys()
    if live is None or not creation_only:
        return desired
    live_fields = {name: live["spec"][name] for name in creation_only if live.get("spec", {}).get(name)}
    persistent = _drop_creation_only(desired)
    return {
        **persistent,
        "metadata": {**persistent["metadata"], "resourceVersion": live["metadata"]["resourceVersion"]},
        "spec": {**persistent["spec"], **live_fields},
    }


def compute_digest(manifest: Manifest) -> str:
    """Return the short hash that the annotations `tidegate.io/applied` and `tidegate.io/created` hold.

    Our own annotations, creation-only fields and the resourceVersion are left out.
    """
    text = json.dumps(
        _drop_own_annotations(_drop_creation_only(manifest)),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def add_apply_annotations(
    manifest: Manifest, epoch: int, digest_annotation: str = APPLIED_ANNOTATION
) -> dict[str, Any]:
    """Return `manifest` with annotations for its digest and the epoch of the leader that writes it.

    `digest_annotation` is the digest's annotation: one for objects that are applied, another for objects that are created.
    """
    metadata: Mapping[str, Any] = manifest.get("metadata", {})
    annotations = {
        **(metadata.get("annotations") or {}),
        digest_annotation: compute_digest(manifest),
        EPOCH_ANNOTATION: str(epoch),
    }
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def is_subset(desired: Any, live: Any, *, quantity: bool = False) -> bool:
    """Return whether everything in `desired` is in `live`: mappings by key, lists by merge key or else by position.

    An empty value (nothing, zero, false) equals an absent field, since the API server drops those.
    """
    if live is None and not desired:
        return True
    if isinstance(desired, Mapping):
        return isinstance(live, Mapping | None) and _is_submapping(desired, live or {}, quantity=quantity)
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return isinstance(live, Sequence) and _is_sublist(desired, live, quantity=quantity)
    return desired == live or (quantity and _is_same_quantity(str(desired), str(live)))


def _is_submapping(desired: Mapping[str, Any], live: Mapping[str, Any], *, quantity: bool) -> bool:
    return all(
        is_subset(value, live.get(name), quantity=quantity or name in _QUANTITY_HOLDERS)
        for name, value in desired.items()
        if name not in _OWN_ANNOTATIONS
    )


def _is_sublist(desired: Sequence[Any], live: Sequence[Any], *, quantity: bool) -> bool:
    key = _find_merge_key(desired, live)
    if key is not None:
        live_items = {item[key]: item for item in live}
        return all(is_subset(item, live_items.get(item[key], ()), quantity=quantity) for item in desired)
    return len(desired) == len(live) and all(
        is_subset(desired_item, live_item, quantity=quantity)
        for desired_item, live_item in zip(desired, live, strict=True)
    )


def _find_merge_key(*lists: Sequence[Any]) -> str | None:
    """Return the key that identifies the items of all these lists; None if no key does.

    Lists that have one may contain items of other field managers too.
    """
    return next((key for key in _MERGE_KEYS if all(_is_keyed_by(key, items) for items in lists)), None)


def _is_keyed_by(key: str, items: Sequence[Any]) -> bool:
    values = [item.get(key) if isinstance(item, Mapping) else None for item in items]
    return all(isinstance(value, str | int) for value in values) and len(set(values)) == len(values)


def _is_same_quantity(desired: str, live: str) -> bool:
    try:
        return parse_quantity(desired) == parse_quantity(live)
    except ValueError:
        return False


def _drop_creation_only(manifest: Manifest) -> Manifest:
    """Return `manifest` without its creation-only fields."""
    creation_only = _CREATION_ONLY.get(str(manifest.get("kind")), frozenset())
    if not creation_only & manifest.get("spec", {}).keys():
        return manifest
    spec = {name: value for name, value in manifest["spec"].items() if name not in creation_only}
    return {**manifest, "spec": spec}


def _drop_own_annotations(manifest: Manifest) -> Manifest:
    metadata: Mapping[str, Any] = manifest.get("metadata", {})
    annotations: Mapping[str, Any] = metadata.get("annotations") or {}
    other_metadata = {
        name: value for name, value in metadata.items() if name not in {"annotations", "resourceVersion"}
    }
    other_annotations = {name: value for name, value in annotations.items() if name not in _OWN_ANNOTATIONS}
    return {
        **manifest,
        "metadata": {**other_metadata, "annotations": other_annotations}
        if other_annotations
        else other_metadata,
    }

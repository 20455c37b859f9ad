"""The type of what builders return: whole Kubernetes objects as plain JSON values."""

from collections.abc import Mapping
from typing import TypeAlias

from tidegate.api.meta import ObjectMeta

Manifest: TypeAlias = Mapping[str, object]


def make_owner_reference(api_version: str, kind: str, owner: ObjectMeta) -> dict[str, object]:
    """Return the controlling owner reference, with which the API server deletes a child with its owner."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }

"""What builders return: whole Kubernetes objects as plain JSON values."""

from collections.abc import Mapping
from typing import TypeAlias

from tidegate.api.meta import ObjectMeta

Manifest: TypeAlias = Mapping[str, object]


def owner_reference(api_version: str, kind: str, owner: ObjectMeta) -> dict[str, object]:
    """The controlling owner reference that makes the API server delete a child with its owner."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }

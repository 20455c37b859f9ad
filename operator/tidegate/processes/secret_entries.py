"""Secrets as a process keeps them: their entries, and nothing that people wrote about them."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from tidegate.kube.port import Manifest
from tidegate.routing.credentials import SecretData


def entries_alone(body: Manifest) -> Manifest:
    """A Secret without what people write about it: annotations may hold a second copy of it, as `kubectl apply` makes one."""
    metadata: Mapping[str, Any] = body["metadata"]
    kept = {
        name: metadata[name] for name in ("namespace", "name", "resourceVersion", "uid") if name in metadata
    }
    return {"metadata": kept, "data": body.get("data") or {}}


def secret_data(body: Manifest | None) -> SecretData | None:
    """The entries of a Secret; one whose base64 is broken, which the API server never stores, counts as empty."""
    if body is None:
        return None
    entries: dict[str, bytes] = {}
    for name, value in body["data"].items():
        try:
            entries[name] = base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error):
            entries[name] = b""
    return SecretData(entries)

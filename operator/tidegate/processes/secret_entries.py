"""Reduces Secrets to their entries before a process caches them."""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from tidegate.kube.port import Manifest
from tidegate.routing.credentials import SecretData


def trim_secret(body: Manifest) -> Manifest:
    """Return a Secret without annotations, which may contain a copy of it: `kubectl apply` adds one."""
    metadata: Mapping[str, Any] = body["metadata"]
    metadata_fields = {
        name: metadata[name] for name in ("namespace", "name", "resourceVersion", "uid") if name in metadata
    }
    return {"metadata": metadata_fields, "data": body.get("data") or {}}


def decode_secret(body: Manifest | None) -> SecretData | None:
    """Return the entries of a Secret; one with invalid base64, which the API server never stores, counts as empty."""
    if body is None:
        return None
    entries: dict[str, bytes] = {}
    for name, value in body["data"].items():
        try:
            entries[name] = base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error):
            entries[name] = b""
    return SecretData(entries)

"""Waits until a gateway does not know a ModelAccess that was deleted."""

from __future__ import annotations

import urllib.error
import urllib.request

from builders.waiting import wait_until


def wait_until_unknown(gateway: str, access: str, model: str) -> None:
    """Ask `gateway` (host:port) for a model by `access` (namespace/name) until it answers 404."""
    asked = urllib.request.Request(
        f"http://{gateway}/v2/models/{model}", headers={"x-tidegate-access": access}
    )

    def is_unknown() -> bool:
        try:
            with urllib.request.urlopen(asked, timeout=30):
                return False
        except urllib.error.HTTPError as error:
            return error.code == 404

    wait_until(is_unknown, f"{gateway} does not know the ModelAccess {access}")

"""The key of the dashboard's sessions: written once, by one replica, and again after somebody emptied its Secret."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography.fernet import Fernet

from tidegate.api.meta import ObjectKey
from tidegate.errors import ConflictError
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.session_key import SessionKey

KEY = ObjectKey("tidegate-system", "tidegate-web-session")


class Secrets:
    """One Secret, with the API server's check of resourceVersion."""

    def __init__(self, data: Mapping[str, str] | None = None, *, missing: bool = False) -> None:
        metadata = {"name": KEY.name, "namespace": KEY.namespace, "resourceVersion": "1", "managedFields": []}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}
        self.body: dict[str, Any] | None = None if missing else {**body, **({"data": data} if data else {})}
        self.writes = 0

    async def read_body(self) -> Mapping[str, Any] | None:
        return self.body

    async def replace_body(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self.body is not None
        if manifest["metadata"]["resourceVersion"] != self.body["metadata"]["resourceVersion"]:
            raise ConflictError("another replica was first")
        self.writes += 1
        metadata = {**manifest["metadata"], "resourceVersion": str(self.writes + 1)}
        self.body = {**manifest, "metadata": metadata}
        return self.body


def session_key(secrets: Secrets) -> SessionKey:
    return SessionKey(KEY, secrets.read_body, secrets.replace_body, SystemClock())


async def test_an_empty_secret_gets_a_key_that_the_dashboard_takes_and_keeps_it() -> None:
    secrets = Secrets()
    await session_key(secrets).fill_secret()
    assert secrets.body is not None
    written = base64.b64decode(secrets.body["data"]["key"])
    Fernet(written)
    await session_key(secrets).fill_secret()
    assert (secrets.writes, base64.b64decode(secrets.body["data"]["key"])) == (1, written)
    secrets.body = {**secrets.body, "data": {}}
    await session_key(secrets).fill_secret()
    assert base64.b64decode(secrets.body["data"]["key"]) != written


async def test_other_entries_of_the_secret_stay() -> None:
    secrets = Secrets({"ours": "eA=="})
    await session_key(secrets).fill_secret()
    assert secrets.body is not None
    assert secrets.body["data"].keys() == {"ours", "key"}
    assert secrets.body["data"]["ours"] == "eA=="


async def test_of_two_replicas_the_second_writes_nothing() -> None:
    secrets = Secrets()
    stale = secrets.body

    async def read_late() -> Mapping[str, Any] | None:
        return stale

    await session_key(secrets).fill_secret()
    written = secrets.body
    with pytest.raises(ConflictError):
        await SessionKey(KEY, read_late, secrets.replace_body, SystemClock()).fill_secret()
    assert (secrets.body, secrets.writes) == (written, 1)


async def test_without_a_secret_nothing_is_written() -> None:
    secrets = Secrets(missing=True)
    await session_key(secrets).fill_secret()
    assert (secrets.body, secrets.writes) == (None, 0)

"""Fills the Secret of the dashboard's session key, so that no rendering of the chart contains or changes the key."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

import structlog
from cryptography.fernet import Fernet

from tidegate.api.meta import ObjectKey
from tidegate.errors import TidegateError
from tidegate.kube.client import KubeClient
from tidegate.kube.kinds import SECRET
from tidegate.kube.port import Manifest
from tidegate.runtime.clock import Clock

KEY_ENTRY: Final = "key"
_CHECK_S: Final = 60
_RETRY_S: Final = 2

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The key of the dashboard's sessions in the Secret `secret`, which the chart creates without data.

    Every replica of the controllers fills it, leading or not, since each write names the resourceVersion that it read.
    """

    secret: ObjectKey
    read_secret: Callable[[], Awaitable[Manifest | None]]
    replace_secret: Callable[[Manifest], Awaitable[Manifest]]
    clock: Clock

    @classmethod
    def of_release(cls, client: KubeClient, release: str, namespace: str, clock: Clock) -> Self:
        """Return the key in the Secret <release>-web-session of the namespace."""
        secret = ObjectKey(namespace, f"{release}-web-session")
        return cls(secret, partial(client.get, SECRET, secret), partial(client.replace, SECRET), clock)

    async def fill_secret(self) -> None:
        """Write a random key unless there is one.

        Raises ConflictError if another replica was first, and other TidegateErrors if the Secret cannot be read or written.
        """
        body = await self.read_secret()
        if body is None:
            log.warning("session_key_secret_missing", secret=str(self.secret), restore="helm upgrade")
            return
        before = body.get("data") or {}
        if before.get(KEY_ENTRY):
            return
        metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
        data = {**before, KEY_ENTRY: base64.b64encode(Fernet.generate_key()).decode()}
        await self.replace_secret({**body, "metadata": metadata, "data": data})
        log.info("session_key_written", secret=str(self.secret))

    async def keep_filled(self) -> None:
        """Fill the Secret, and again whenever it has been emptied, until cancelled."""
        while True:
            try:
                await self.fill_secret()
            except TidegateError as error:
                log.warning("session_key_not_written", secret=str(self.secret), error=str(error))
                await self.clock.sleep(_RETRY_S)
            else:
                await self.clock.sleep(_CHECK_S)

"""What a browser keeps of somebody who has signed in: their token, sealed so that only this installation reads it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Final

from cryptography.fernet import Fernet, InvalidToken

from tidegate.errors import PermanentError
from tidegate.web.access.identity import Identity

LASTING: Final = timedelta(hours=8)
_LONGEST_COOKIE: Final = 3_900
"""Browsers take 4,096 bytes with the name and the attributes."""


@dataclass(frozen=True, slots=True)
class Seal:
    """`key` is from Fernet.generate_key(): all replicas have the same."""

    key: bytes

    @property
    def cookie(self) -> str:
        """Its name: browsers tell ports of a host not apart, and two dashboards on one would sign each other out."""
        return f"tidegate-session-{sha256(self.key).hexdigest()[:8]}"

    def sealed(self, token: str) -> str:
        """For a cookie. Raises PermanentError for what is too long for one."""
        value = Fernet(self.key).encrypt(token.encode()).decode()
        if len(value) > _LONGEST_COOKIE:
            message = (
                f"the token has {len(token)} bytes, too many for a cookie: sign in with a ServiceAccount's token "
                "(kubectl create token), or put an authenticating proxy before the dashboard (web.auth.mode: proxy)"
            )
            raise PermanentError(message)
        return value

    def opened(self, value: str) -> str | None:
        """The token of a cookie; None for one that is too old, of another installation, or forged."""
        try:
            return Fernet(self.key).decrypt(value.encode(), ttl=int(LASTING.total_seconds())).decode()
        except (InvalidToken, ValueError):
            return None

    def csrf(self, identity: Identity) -> str:
        """What a form must bring: only somebody who was shown a page as this identity knows it."""
        return hmac.new(self.key, b"csrf\x00" + identity.key.encode(), sha256).hexdigest()

    def vouches(self, identity: Identity, given: str) -> bool:
        """Whether a form brought it."""
        return hmac.compare_digest(self.csrf(identity).encode(), given.encode(errors="replace"))

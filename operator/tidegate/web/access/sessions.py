"""Store the token of a signed-in user in a cookie, encrypted for this installation."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Final

from cryptography.fernet import Fernet, InvalidToken

from tidegate.errors import PermanentError
from tidegate.web.access.identity import Identity

SESSION_DURATION: Final = timedelta(hours=8)
_MAX_COOKIE_BYTES: Final = 3_900
"""Browsers accept 4,096 bytes including the name and the attributes."""


@dataclass(frozen=True, slots=True)
class SessionSeal:
    """Encryption of session cookies; `key` is from Fernet.generate_key(), the same in all replicas."""

    key: bytes

    @property
    def cookie_name(self) -> str:
        """Return the name of the cookie, which depends on the key.

        Browsers share cookies between ports: two dashboards on one host would otherwise sign each other out.
        """
        return f"tidegate-session-{sha256(self.key).hexdigest()[:8]}"

    def seal_token(self, token: str) -> str:
        """Encrypt a token for the cookie. Raises PermanentError if the result is too long."""
        value = Fernet(self.key).encrypt(token.encode()).decode()
        if len(value) > _MAX_COOKIE_BYTES:
            message = (
                f"the token has {len(token)} bytes, too many for a cookie: sign in with a ServiceAccount's token "
                "(kubectl create token), or put an authenticating proxy before the dashboard (web.auth.mode: proxy)"
            )
            raise PermanentError(message)
        return value

    def open_token(self, value: str) -> str | None:
        """Decrypt the token of a cookie; None if it is expired, forged or of another installation."""
        try:
            return (
                Fernet(self.key).decrypt(value.encode(), ttl=int(SESSION_DURATION.total_seconds())).decode()
            )
        except (InvalidToken, ValueError):
            return None

    def make_csrf_token(self, identity: Identity) -> str:
        """Return the CSRF token, which only pages rendered for this identity contain."""
        return hmac.new(self.key, b"csrf\x00" + identity.key.encode(), sha256).hexdigest()

    def verify_csrf_token(self, identity: Identity, token: str) -> bool:
        """Return whether it is the CSRF token of this identity."""
        return hmac.compare_digest(self.make_csrf_token(identity).encode(), token.encode(errors="replace"))

"""Somebody whom the API server knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class Identity:
    """A user; `token` is their own where they showed one, and in no text."""

    user: str
    groups: tuple[str, ...] = ()
    token: str = field(default="", repr=False)

    @property
    def key(self) -> str:
        """Tells identities apart, and says nothing of the token."""
        parts = (self.token,) if self.token else ("", self.user, *self.groups)
        return sha256("\x00".join(parts).encode()).hexdigest()

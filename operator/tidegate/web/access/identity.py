"""The identity of an authenticated user."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class Identity:
    """A user and their groups; `token` is the user's own, if any, and appears in no repr."""

    user: str
    groups: tuple[str, ...] = ()
    token: str = field(default="", repr=False)

    @property
    def key(self) -> str:
        """Return a key that is unique for the identity and does not reveal the token."""
        parts = (self.token,) if self.token else ("", self.user, *self.groups)
        return sha256("\x00".join(parts).encode()).hexdigest()

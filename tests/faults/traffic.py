"""Requests between operator and API server, told apart: what reads, what watches, and which writes count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_VERBS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Traffic(StrEnum):
    """What a request is to the sweep; only a WRITE or an ORDER is a step at which a fault can strike."""

    READ = "read"
    WATCH = "watch"
    WRITE = "write"
    ORDER = "order"
    EVENT = "event"
    LEASE = "lease"


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as far as its address says what it is."""

    method: str
    path: str
    resource: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    watch: bool = False

    @classmethod
    def parse(cls, method: str, path: str, query: Mapping[str, str]) -> Call:
        """Reads `/api/v1/…` and `/apis/<group>/<version>/…`; any other path has no resource."""
        watch = query.get("watch") in {"true", "1"}
        parts = [part for part in path.split("/") if part]
        rest = parts[2:] if parts[:1] == ["api"] else parts[3:] if parts[:1] == ["apis"] else []
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource, name, subresource = (*rest, "", "", "")[:3]
        return cls(method, path, resource, namespace, name, subresource, watch=watch)

    @property
    def traffic(self) -> Traffic:
        """What it is to the sweep."""
        if self.method not in _VERBS:
            return Traffic.WATCH if self.watch else Traffic.READ
        return {"events": Traffic.EVENT, "leases": Traffic.LEASE}.get(self.resource, Traffic.WRITE)

    @property
    def is_list(self) -> bool:
        """Whether it reads all objects of a kind, once."""
        return self.traffic is Traffic.READ and bool(self.resource) and not self.name

    def __str__(self) -> str:
        place = "/".join(part for part in (self.resource, self.subresource) if part)
        return f"{self.method} {place} {self.name}".strip()


@dataclass(frozen=True, slots=True)
class Step:
    """A write or an order that was seen: its number within the run, from 1."""

    number: int
    traffic: Traffic
    what: str
    epoch: int | None = None
    """The term of leadership that the write says it belongs to."""

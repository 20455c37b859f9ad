"""What the xDS servers say of themselves: how far each proxy is, what a snapshot has, what differs between two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import ConfigDict, Field

from tidegate.api.meta import ApiModel
from tidegate.reports.report import Report


class _Said(ApiModel):
    """A part of a server's answer; what a newer server says besides is left out."""

    model_config = ConfigDict(extra="ignore")


class _Told(_Said):
    """One server's answer. Without proxies it is none: whoever answers is no xDS server."""

    proxies: tuple[Mapping[str, Any], ...]
    gateway_secrets: tuple[Mapping[str, Any], ...] = ()


class ProxyReport(_Said):
    """One connected proxy."""

    node: str
    kind: str
    """`gateway`, or `grpc-client` for one without a gateway."""
    revision: str | None
    """The last snapshot that it accepted in full; absent or empty before the first."""
    types: Mapping[str, str]
    """How far it is with each type that it asked for: SYNCED, STALE, NACKED or NOT_SENT."""
    nack: str | None
    """Why it refuses what it was sent last."""
    server: str
    """The xDS server that it is connected to: a pod, or an address."""


class GatewaySecretReport(_Said):
    """One Secret of the gateways' TLS port, as one server has it: each holds the last good one by itself."""

    secret: str
    role: str
    expires: str | None
    """RFC 3339; absent where gateways have none from this server."""
    problem: str | None
    server: str


class XdsStatusReport(Report):
    """All servers that answered."""

    proxies: tuple[ProxyReport, ...]
    gateway_secrets: tuple[GatewaySecretReport, ...]

    @classmethod
    def of(cls, answers: Mapping[str, Mapping[str, Any]]) -> Self:
        """From the servers' answers, by server. Raises pydantic.ValidationError where one is no answer of an xDS server."""

        told = {server: _Told.model_validate(said) for server, said in answers.items()}
        proxies = [{**one, "server": server} for server, said in told.items() for one in said.proxies]
        secrets = [{**one, "server": server} for server, said in told.items() for one in said.gateway_secrets]
        return cls.model_validate({"proxies": proxies, "gatewaySecrets": secrets})

    def lines(self, *, wide: bool) -> Iterator[str]:
        """A line for each proxy and for each Secret, and one more where something is wrong."""
        if not self.proxies:
            yield "no proxy is connected"
        else:
            yield (
                f"{'PROXY':40}{'REVISION':18}{'SERVER':40}TYPES"
                if wide
                else f"{'PROXY':40}{'REVISION':18}TYPES"
            )
        for proxy in self.proxies:
            types = " ".join(f"{kind}={state}" for kind, state in proxy.types.items())
            server = f"{proxy.server:40}" if wide else ""
            yield f"{proxy.node:40}{proxy.revision or '-':18}{server}{types}"
            if proxy.nack:
                yield f"  refused: {proxy.nack}"
        if self.gateway_secrets:
            yield f"{'SECRET':28}{'ROLE':18}{'EXPIRES':22}SERVER"
        for one in self.gateway_secrets:
            yield f"{one.secret:28}{one.role:18}{one.expires or '-':22}{one.server}"
            if one.problem:
                kept = "the last good one stays" if one.expires else "gateways have none from this server"
                yield f"  {one.problem}; {kept}"

    def names(self) -> Iterator[str]:
        """The nodes of the proxies."""
        return (proxy.node for proxy in self.proxies)


class ResourceReport(_Said):
    """One resource of a snapshot."""

    name: str
    version: str
    content: Any = None
    """In plain types, `redacted` for secrets; absent unless it was asked for by name."""


class SnapshotReport(Report):
    """One revision."""

    model_config = ConfigDict(extra="ignore")

    revision: str
    resources: Mapping[str, tuple[ResourceReport, ...]]
    """By type: listener, route, cluster, endpoint, secret, scope."""
    refusals: tuple[str, ...] = ()
    """Parts of a ModelAccess that could not be served, where it was asked for by name."""

    def lines(self, *, wide: bool) -> Iterator[str]:
        """The revision, and a line for each resource."""
        del wide
        yield f"revision {self.revision}"
        for kind, resources in self.resources.items():
            for resource in resources:
                yield f"{kind:10}{resource.version}  {resource.name}"

    def names(self) -> Iterator[str]:
        """Those of the resources, once each."""
        return iter(dict.fromkeys(one.name for of_kind in self.resources.values() for one in of_kind))


class Change(StrEnum):
    """What happened to a resource."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class ResourceChange(_Said):
    """One resource that differs; its versions, or its contents where it was asked for by name."""

    name: str
    change: Change
    before: Any
    after: Any


class SnapshotDiffReport(Report):
    """What differs between two revisions."""

    model_config = ConfigDict(extra="ignore")

    before: str = Field(alias="from")
    after: str = Field(alias="to")
    changes: Mapping[str, tuple[ResourceChange, ...]]

    def lines(self, *, wide: bool) -> Iterator[str]:
        """Both revisions, and a line for each resource that differs."""
        del wide
        yield f"{self.before} -> {self.after}"
        for kind, changes in self.changes.items():
            for one in changes:
                yield f"{one.change:9}{kind:10}{one.name}"

    def names(self) -> Iterator[str]:
        """Those of the resources that differ, once each."""
        return iter(dict.fromkeys(one.name for of_kind in self.changes.values() for one in of_kind))

"""Report what the xDS servers answer: how far each proxy is, a snapshot's resources, and what differs between two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Self

from pydantic import ConfigDict, Field

from tidegate.api.meta import ApiModel
from tidegate.reports.report import Report


class _AnswerPart(ApiModel):
    """A part of a server's answer; unknown fields of newer servers are ignored."""

    model_config = ConfigDict(extra="ignore")


class _ServerAnswer(_AnswerPart):
    """One server's answer. An answer without proxies does not come from an xDS server."""

    proxies: tuple[Mapping[str, Any], ...]
    gateway_secrets: tuple[Mapping[str, Any], ...] = ()


class ProxyStatusReport(_AnswerPart):
    """One connected proxy."""

    node: str
    kind: str
    """`gateway`, or `grpc-client` for one without a gateway."""
    revision: str | None
    """The last snapshot that it accepted in full; absent or empty before the first."""
    types: Mapping[str, str]
    """The state of each type that it subscribes to: SYNCED, STALE, NACKED or NOT_SENT."""
    nack: str | None
    """Why it rejected the last response."""
    server: str
    """The xDS server that it is connected to: a pod, or an address."""


class GatewaySecretReport(_AnswerPart):
    """One Secret of the gateways' TLS port, as one server has it: each holds the last good one by itself."""

    secret: str
    role: str
    expires: str | None
    """RFC 3339; absent if gateways have no Secret from this server."""
    problem: str | None
    server: str


class XdsStatusReport(Report):
    """The answers of all servers."""

    proxies: tuple[ProxyStatusReport, ...]
    gateway_secrets: tuple[GatewaySecretReport, ...]

    @classmethod
    def from_answers(cls, answers: Mapping[str, Mapping[str, Any]]) -> Self:
        """Merge the answers by server.

        Raises pydantic.ValidationError for an answer that does not come from an xDS server.
        """

        parsed = {server: _ServerAnswer.model_validate(answer) for server, answer in answers.items()}
        proxies = [
            {**proxy, "server": server} for server, answer in parsed.items() for proxy in answer.proxies
        ]
        secrets = [
            {**secret, "server": server}
            for server, answer in parsed.items()
            for secret in answer.gateway_secrets
        ]
        return cls.model_validate({"proxies": proxies, "gatewaySecrets": secrets})

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a line per proxy and per Secret, and another one for each problem."""
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
        for secret in self.gateway_secrets:
            yield f"{secret.secret:28}{secret.role:18}{secret.expires or '-':22}{secret.server}"
            if secret.problem:
                consequence = (
                    "the last good one stays" if secret.expires else "gateways have none from this server"
                )
                yield f"  {secret.problem}; {consequence}"

    def object_names(self) -> Iterator[str]:
        """Yield the proxies' nodes."""
        return (proxy.node for proxy in self.proxies)


class ResourceReport(_AnswerPart):
    """One resource of a snapshot."""

    name: str
    version: str
    content: Any = None
    """Plain types, with `redacted` for secrets; absent unless requested by name."""


class SnapshotReport(Report):
    """One revision."""

    model_config = ConfigDict(extra="ignore")

    revision: str
    resources: Mapping[str, tuple[ResourceReport, ...]]
    """By type: listener, route, cluster, endpoint, secret, scope."""
    refusals: tuple[str, ...] = ()
    """Parts of a ModelAccess that could not be served, if requested by name."""

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield the revision, and a line per resource."""
        del wide
        yield f"revision {self.revision}"
        for kind, resources in self.resources.items():
            for resource in resources:
                yield f"{kind:10}{resource.version}  {resource.name}"

    def object_names(self) -> Iterator[str]:
        """Yield each resource's name once."""
        return iter(
            dict.fromkeys(resource.name for of_kind in self.resources.values() for resource in of_kind)
        )


class ResourceChangeType(StrEnum):
    """The change of a resource."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class ResourceChange(_AnswerPart):
    """One resource that differs; its versions, or its contents where it was asked for by name."""

    name: str
    change: ResourceChangeType
    before: Any
    after: Any


class SnapshotDiffReport(Report):
    """The difference between two revisions."""

    model_config = ConfigDict(extra="ignore")

    before: str = Field(alias="from")
    after: str = Field(alias="to")
    changes: Mapping[str, tuple[ResourceChange, ...]]

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield both revisions, and a line per resource that differs."""
        del wide
        yield f"{self.before} -> {self.after}"
        for kind, changes in self.changes.items():
            for change in changes:
                yield f"{change.change:9}{kind:10}{change.name}"

    def object_names(self) -> Iterator[str]:
        """Yield the name of each resource that differs once."""
        return iter(dict.fromkeys(change.name for of_kind in self.changes.values() for change in of_kind))

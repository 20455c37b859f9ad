"""The report of `GET /v2/programmed`: which proxies run which generation of which object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tidegate.api.reasons import Reason


class ReportedHost(BaseModel):
    """The virtual host of one object, as a proxy runs it, with the object's uid and generation.

    `answers` is False if some request to it would be answered 503 for lack of an endpoint.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    uid: str = ""
    generation: int = 0
    answers: bool = False


class ReportedProxy(BaseModel):
    """One connected proxy.

    `revision` is that of the last snapshot that it accepted in full, empty before the first.
    `hosts` are the objects that it runs, and `refused` its reasons for the objects that it rejected (NACK), by routing.hosts.HostKey.
    `nack` is the reason of its last NACK.
    `hosts_of` is for JSON only: the node, earlier in the report, that has the same `hosts`, which are then left out.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    node: str
    revision: str = ""
    hosts: Mapping[str, ReportedHost] = Field(default_factory=dict)
    hosts_of: str = ""
    refused: Mapping[str, str] = Field(default_factory=dict)
    nack: str | None = None


class ReportedRefusal(BaseModel):
    """Why the gateways admit no callers of one object, or only some.

    Only a process with access to Secrets can find it; it contains no value of one.
    `reason` is a plain string if only a newer version of the xDS server has it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    uid: str = ""
    generation: int = 0
    reason: Annotated[Reason | str, Field(union_mode="left_to_right")]
    part: str = ""
    message: str = ""


class ProgrammedReport(BaseModel):
    """The report of one replica of the xDS server.

    `revision` is that of its newest snapshot, empty before its caches are full. `refusals` are those of the newest snapshot.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    revision: str = ""
    proxies: tuple[ReportedProxy, ...] = ()
    refusals: tuple[ReportedRefusal, ...] = ()


def to_json(report: ProgrammedReport) -> str:
    """Return the report as JSON, in which mappings of hosts that several proxies share are written once.

    Most proxies run the same: the report grows with objects and proxies, and not with their product.
    """
    first: dict[int, str] = {}
    proxies = tuple(
        proxy
        if (node := first.setdefault(id(proxy.hosts), proxy.node)) == proxy.node
        else proxy.model_copy(update={"hosts": {}, "hosts_of": node})
        for proxy in report.proxies
    )
    return report.model_copy(update={"proxies": proxies}).model_dump_json()


def from_json(text: str | bytes) -> ProgrammedReport:
    """Parse the result of `to_json`; proxies that run the same hosts share one mapping. Raises ValueError."""
    report = ProgrammedReport.model_validate_json(text)
    hosts = {proxy.node: proxy.hosts for proxy in report.proxies if not proxy.hosts_of}
    try:
        proxies = tuple(
            proxy.model_copy(update={"hosts": hosts[proxy.hosts_of], "hosts_of": ""})
            if proxy.hosts_of
            else proxy
            for proxy in report.proxies
        )
    except KeyError as error:
        message = f"the report has no proxy {error}"
        raise ValueError(message) from error
    return report.model_copy(update={"proxies": proxies})


def merge_proxies(reports: Sequence[ProgrammedReport]) -> tuple[ReportedProxy, ...]:
    """Return all proxies of several replicas, by node.

    A proxy in two reports has just moved from one replica to the other.
    It runs what it accepted from either, so the later generation counts.
    """
    by_node: dict[str, ReportedProxy] = {}
    for report in reports:
        for proxy in report.proxies:
            earlier = by_node.get(proxy.node)
            by_node[proxy.node] = proxy if earlier is None else _merge_reports(earlier, proxy)
    return tuple(by_node[node] for node in sorted(by_node))


def _later_host(host: ReportedHost, other: ReportedHost) -> ReportedHost:
    if host.uid == other.uid and host.generation == other.generation:
        return host if not host.answers else other
    return max(host, other, key=lambda reported: reported.generation)


def _merge_reports(proxy: ReportedProxy, other: ReportedProxy) -> ReportedProxy:
    hosts = dict(proxy.hosts)
    for name, host in other.hosts.items():
        earlier = hosts.get(name)
        hosts[name] = host if earlier is None else _later_host(earlier, host)
    return ReportedProxy(
        node=proxy.node,
        revision=proxy.revision or other.revision,
        hosts=hosts,
        refused={**other.refused, **proxy.refused},
        nack=proxy.nack or other.nack,
    )

"""What `GET /v2/programmed` of the xDS server says: which proxies run which generation of which object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from tidegate.api.reasons import Reason


class ReportedHost(BaseModel):
    """The virtual host of one object, as a proxy runs it: made from which object and generation.

    `answers` is False when some request to it would be answered 503, for want of an endpoint.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    uid: str = ""
    generation: int = 0
    answers: bool = False


class ReportedProxy(BaseModel):
    """One connected proxy.

    `revision` is that of the last snapshot it accepted in full, empty before the first.
    `hosts` says what it runs, and `refused` of what it refused the newest and in which words, both by routing.hosts.HostKey.
    `nack` is its reason for the last refusal, whatever that was about.
    `hosts_of` is for JSON alone: the node, earlier in the report, that runs the very same `hosts`, which are then left out.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    node: str
    revision: str = ""
    hosts: Mapping[str, ReportedHost] = Field(default_factory=dict)
    hosts_of: str = ""
    refused: Mapping[str, str] = Field(default_factory=dict)
    nack: str | None = None


class ReportedRefusal(BaseModel):
    """Why callers of one object are not let in, as only who reads the Secrets can know; never a value out of one."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    host: str
    uid: str = ""
    generation: int = 0
    reason: Reason
    part: str = ""
    message: str = ""


class ProxyReport(BaseModel):
    """What one replica of the xDS server knows. `revision` is what it serves now, empty before its caches are full.

    `refusals` are those of what it serves now, by routing.hosts.HostKey.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    revision: str = ""
    proxies: tuple[ReportedProxy, ...] = ()
    refusals: tuple[ReportedRefusal, ...] = ()


def to_json(report: ProxyReport) -> str:
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


def from_json(text: str | bytes) -> ProxyReport:
    """Return what `to_json` was given; proxies that run the same share one mapping. Raises ValueError."""
    report = ProxyReport.model_validate_json(text)
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


def proxies_of(reports: Sequence[ProxyReport]) -> tuple[ReportedProxy, ...]:
    """All proxies of several replicas, by node.

    A proxy that two replicas report has just moved from one to the other; what it accepted from either it runs, so the more generations count.
    """
    by_node: dict[str, ReportedProxy] = {}
    for report in reports:
        for proxy in report.proxies:
            known = by_node.get(proxy.node)
            by_node[proxy.node] = proxy if known is None else _joined(known, proxy)
    return tuple(by_node[node] for node in sorted(by_node))


def _later(one: ReportedHost, other: ReportedHost) -> ReportedHost:
    if one.uid == other.uid and one.generation == other.generation:
        return one if not one.answers else other
    return max(one, other, key=lambda host: host.generation)


def _joined(one: ReportedProxy, other: ReportedProxy) -> ReportedProxy:
    hosts = dict(one.hosts)
    for name, host in other.hosts.items():
        known = hosts.get(name)
        hosts[name] = host if known is None else _later(known, host)
    return ReportedProxy(
        node=one.node,
        revision=one.revision or other.revision,
        hosts=hosts,
        refused={**other.refused, **one.refused},
        nack=one.nack or other.nack,
    )

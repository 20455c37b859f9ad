"""What `GET /v1/programmed` of the xDS server says: which proxies run which generation of which ModelAccess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from tidegate.api.meta import ObjectKey


class ReportedProxy(BaseModel):
    """One connected proxy.

    `revision` is that of the last snapshot it accepted in full, empty before the first; `accesses` maps `namespace/name` to the generation in it.
    `nack` is the proxy's own reason for refusing what came after.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    node: str
    revision: str = ""
    accesses: Mapping[str, int] = Field(default_factory=dict)
    nack: str | None = None

    def runs(self, access: ObjectKey, generation: int) -> bool:
        """Whether it runs `generation` of `access`, or a later one."""
        return self.accesses.get(str(access), -1) >= generation


class ProxyReport(BaseModel):
    """What one replica of the xDS server knows. `revision` is what it serves now, empty before its caches are full."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    revision: str = ""
    proxies: tuple[ReportedProxy, ...] = ()


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


def _joined(one: ReportedProxy, other: ReportedProxy) -> ReportedProxy:
    accesses = dict(one.accesses)
    for access, generation in other.accesses.items():
        accesses[access] = max(generation, accesses.get(access, -1))
    return ReportedProxy(
        node=one.node,
        revision=one.revision or other.revision,
        accesses=accesses,
        nack=one.nack or other.nack,
    )

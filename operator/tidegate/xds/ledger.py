"""Which proxy has accepted what: the source of every `Programmed` condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidegate.routing.guards import ABOUT_CALLERS
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.planner import HostState
from tidegate.routing.snapshot import Snapshot
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.report import ProxyReport, ReportedHost, ReportedProxy, ReportedRefusal
from tidegate.xds.stream import Running, StreamProgress

# A proxy that comes back goes on with what it had; for how many that left this is remembered.
_REMEMBERED_NODES = 1_000


_Known = dict[tuple[int, frozenset[tuple[HostKey, HostState | None]]], Mapping[str, ReportedHost]]
"""Hosts as they are reported, by the identity of a snapshot and what is run instead of it."""


@dataclass(slots=True)
class _Proxy:
    stream: int
    progress: StreamProgress


class AckLedger:
    """The progress of all open streams, by the proxy's node id; a proxy with two streams counts by its newest."""

    def __init__(self, cache: SnapshotCache) -> None:
        self._cache = cache
        self._proxies: dict[str, _Proxy] = {}
        self._departed: dict[str, Running] = {}
        self._changes = 0
        # What is refused may change while the configuration stays.
        cache.subscribe(self._changed)

    def _changed(self) -> None:
        self._changes += 1

    @property
    def edition(self) -> str:
        """Names the present report: equal editions of one process mean equal reports."""
        return str(self._changes)

    @property
    def connected(self) -> int:
        """Number of proxies with an open stream."""
        return len(self._proxies)

    def record(self, stream: int, progress: StreamProgress) -> None:
        """Stream number `stream` (later streams have higher ones) is this far."""
        if not progress.node:
            return
        known = self._proxies.get(progress.node)
        if known is None or known.stream <= stream:
            self._changes += known is None or not _same(known.progress, progress)
            self._proxies[progress.node] = _Proxy(stream, progress)

    def closed(self, stream: int, node: str) -> None:
        """Stream number `stream` is over."""
        known = self._proxies.get(node)
        if known is None or known.stream != stream:
            return
        del self._proxies[node]
        self._changes += 1
        running = self._running(known.progress)
        self._departed.pop(node, None)
        if running is not None:
            self._departed[node] = running
        while len(self._departed) > _REMEMBERED_NODES:
            del self._departed[next(iter(self._departed))]

    def report(self) -> ProxyReport:
        """Everything, as `GET /v2/programmed` shows it; proxies that run the same share its mapping."""
        current = self._cache.snapshot
        hosts: _Known = {}
        return ProxyReport(
            revision=current.revision if current else "",
            proxies=tuple(
                self._reported(node, self._proxies[node].progress, hosts) for node in sorted(self._proxies)
            ),
            refusals=tuple(_refused(current)) if current else (),
        )

    def programmed(self, host: HostKey, generation: int) -> bool:
        """Whether there is a proxy, and every connected one runs `generation` of `host` or a later one."""
        running = [self._running(proxy.progress) for proxy in self._proxies.values()]
        states = [None if one is None else one.host(host) for one in running]
        return bool(states) and all(state is not None and state.generation >= generation for state in states)

    def _running(self, progress: StreamProgress) -> Running | None:
        """What the proxy runs: what this stream proved, else what it left with and came back with."""
        if progress.running is None and progress.warm:
            return self._departed.get(progress.node)
        return progress.running

    def _reported(self, node: str, progress: StreamProgress, known: _Known) -> ReportedProxy:
        """What one proxy runs; what others run too is in `known`, and shared."""
        running = self._running(progress)
        acked = progress.acked or (running.snapshot if running is not None and not running.others else None)
        proxy = ReportedProxy(
            node=node,
            revision=acked.revision if acked is not None else "",
            refused={str(key): words for key, words in progress.refused.items()},
            nack=progress.nack,
        )
        if running is None:
            return proxy
        # What one gateway refuses most others refuse too.
        same = id(running.snapshot), frozenset(running.others.items())
        if same not in known:
            known[same] = {
                str(key): ReportedHost(uid=state.uid, generation=state.generation, answers=state.answers)
                for key, state in running.hosts.items()
            }
        return proxy.model_copy(update={"hosts": known[same]})


def _refused(snapshot: Snapshot) -> Iterator[ReportedRefusal]:
    for refusal in snapshot.refusals:
        if refusal.reason not in ABOUT_CALLERS:
            continue
        host = HostKey(HostKind.ACCESS, refusal.access)
        state = snapshot.hosts[host]
        yield ReportedRefusal(
            host=str(host),
            uid=state.uid,
            generation=state.generation,
            reason=refusal.reason,
            part=refusal.part,
            message=refusal.message,
        )


def _same(one: StreamProgress, other: StreamProgress) -> bool:
    """Whether both look alike in a report; snapshots are compared by identity, since they are large."""
    return (one.acked is other.acked and one.running is other.running) and (
        one.nack,
        one.warm,
        one.refused,
    ) == (other.nack, other.warm, other.refused)

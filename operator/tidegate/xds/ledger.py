"""What each proxy has accepted: the source of every `Programmed` condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidegate.routing.guards import CALLER_REASONS
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import HostState
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.report import ProgrammedReport, ReportedHost, ReportedProxy, ReportedRefusal
from tidegate.xds.resources import Snapshot
from tidegate.xds.stream import RunningState, StreamProgress

# A proxy that reconnects still runs its last resources; this many disconnected proxies are remembered.
_REMEMBERED_NODES = 1_000

_SharedHosts = dict[tuple[int, frozenset[tuple[HostKey, HostState | None]]], Mapping[str, ReportedHost]]
"""The report of hosts, by the identity of a snapshot and the hosts that differ from it."""


@dataclass(slots=True)
class _ProxyEntry:
    stream: int
    progress: StreamProgress


class AckLedger:
    """The progress of all open streams, by node id; of two streams of a proxy the newer one is used."""

    def __init__(self, cache: SnapshotCache) -> None:
        self._cache = cache
        self._proxies: dict[str, _ProxyEntry] = {}
        self._departed: dict[str, RunningState] = {}
        self._changes = 0
        # Refusals may change while the configuration stays the same.
        cache.subscribe(self._mark_changed)

    def _mark_changed(self) -> None:
        self._changes += 1

    @property
    def edition(self) -> str:
        """Number of the present report: equal editions of one process mean equal reports."""
        return str(self._changes)

    @property
    def connected_count(self) -> int:
        """Number of proxies with an open stream."""
        return len(self._proxies)

    def record_progress(self, stream: int, progress: StreamProgress) -> None:
        """Record the progress of a stream; later streams have higher numbers."""
        if not progress.node:
            return
        proxy = self._proxies.get(progress.node)
        if proxy is None or proxy.stream <= stream:
            self._changes += proxy is None or not _give_same_report(proxy.progress, progress)
            self._proxies[progress.node] = _ProxyEntry(stream, progress)

    def record_closed(self, stream: int, node: str) -> None:
        """Record the end of a stream."""
        proxy = self._proxies.get(node)
        if proxy is None or proxy.stream != stream:
            return
        del self._proxies[node]
        self._changes += 1
        running = self._find_running(proxy.progress)
        self._departed.pop(node, None)
        if running is not None:
            self._departed[node] = running
        while len(self._departed) > _REMEMBERED_NODES:
            del self._departed[next(iter(self._departed))]

    def build_report(self) -> ProgrammedReport:
        """Return the report for `GET /v2/programmed`; proxies that run the same hosts share one mapping."""
        current = self._cache.snapshot
        hosts: _SharedHosts = {}
        return ProgrammedReport(
            revision=current.revision if current else "",
            proxies=tuple(
                self._report_proxy(node, self._proxies[node].progress, hosts)
                for node in sorted(self._proxies)
            ),
            refusals=tuple(_report_refusals(current)) if current else (),
        )

    def is_programmed(self, host: HostKey, generation: int) -> bool:
        """Return whether a proxy is connected, and each runs at least `generation` of `host`."""
        running = [self._find_running(proxy.progress) for proxy in self._proxies.values()]
        states = [
            None if proxy_running is None else proxy_running.host_state(host) for proxy_running in running
        ]
        return bool(states) and all(state is not None and state.generation >= generation for state in states)

    def _find_running(self, progress: StreamProgress) -> RunningState | None:
        """Return the state that this stream proved; without one, the state at the end of the proxy's last stream."""
        if progress.running is None and progress.resumed:
            return self._departed.get(progress.node)
        return progress.running

    def _report_proxy(self, node: str, progress: StreamProgress, shared_hosts: _SharedHosts) -> ReportedProxy:
        """Return the report of one proxy; `shared_hosts` has the hosts that other proxies run too."""
        running = self._find_running(progress)
        acked = progress.acked or (
            running.snapshot if running is not None and not running.differing_hosts else None
        )
        proxy = ReportedProxy(
            node=node,
            revision=acked.revision if acked is not None else "",
            refused={str(key): reason for key, reason in progress.rejected.items()},
            nack=progress.nack,
        )
        if running is None:
            return proxy
        # Gateways mostly reject the same resources.
        hosts_key = id(running.snapshot), frozenset(running.differing_hosts.items())
        if hosts_key not in shared_hosts:
            shared_hosts[hosts_key] = {
                str(key): ReportedHost(uid=state.uid, generation=state.generation, answers=state.answers)
                for key, state in running.host_states.items()
            }
        return proxy.model_copy(update={"hosts": shared_hosts[hosts_key]})


def _report_refusals(snapshot: Snapshot) -> Iterator[ReportedRefusal]:
    for refusal in snapshot.refusals:
        if refusal.reason not in CALLER_REASONS:
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


def _give_same_report(progress: StreamProgress, other: StreamProgress) -> bool:
    """Return whether both give the same report; snapshots are compared by identity, since they are large."""
    return (progress.acked is other.acked and progress.running is other.running) and (
        progress.nack,
        progress.resumed,
        progress.rejected,
    ) == (other.nack, other.resumed, other.rejected)

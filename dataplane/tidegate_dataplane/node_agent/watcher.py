"""Watcher of MPS, which keeps the last report."""

import asyncio
import hashlib
from collections.abc import Callable
from datetime import datetime

import structlog

from tidegate_dataplane.contract.sharing import DaemonState, MpsClient, MpsServer, NodeReport
from tidegate_dataplane.node_agent.mps import (
    DaemonGoneError,
    DaemonHangsError,
    MpsControl,
    ProgramMissingError,
)

log = structlog.get_logger()


class MpsWatcher:
    """The report of one node's MPS, kept up to date."""

    def __init__(
        self, node: str, mps: MpsControl, pod_of: Callable[[int], str], now: Callable[[], datetime]
    ) -> None:
        """`pod_of` returns the uid of the pod that a pid belongs to; `now` is the wall clock."""
        self._node = node
        self._mps = mps
        self._pod_of = pod_of
        self._now = now
        self._report: NodeReport | None = None
        self._changed = asyncio.Condition()
        self._closed = False

    @property
    def report(self) -> NodeReport | None:
        """Return the last report; None before the first."""
        return self._report

    async def run(self, interval_s: float) -> None:
        """Update the report every `interval_s` until cancelled."""
        while True:
            await self._update_report()
            await asyncio.sleep(interval_s)

    async def wait_for_change(self, revision: str, wait_s: float) -> NodeReport | None:
        """Return the report once its revision differs from `revision`, at the latest after `wait_s`."""

        def has_changed() -> bool:
            return self._closed or (self._report is not None and self._report.revision != revision)

        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(has_changed)
        except TimeoutError:
            pass
        return self._report

    async def close(self) -> None:
        """Answer all requests that wait for a change: the process ends."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()

    async def _update_report(self) -> None:
        report = await self._query_mps()
        content = report.model_dump_json(exclude={"revision"})
        report = report.model_copy(update={"revision": hashlib.sha256(content.encode()).hexdigest()[:16]})
        before, self._report = self._report, report
        if before is None or before.revision != report.revision:
            log.info(
                "node_changed", daemon=report.daemon, servers=len(report.servers), message=report.message
            )
            async with self._changed:
                self._changed.notify_all()

    async def _query_mps(self) -> NodeReport:
        servers: list[MpsServer] = []
        clients: list[MpsClient] = []
        try:
            for server in sorted(await self._mps.list_servers()):
                servers.append(MpsServer(pid=server, status=await self._mps.get_status(server)))
                clients += [
                    self._make_client(server, pid) for pid in sorted(await self._mps.list_clients(server))
                ]
        except DaemonGoneError as error:
            return NodeReport(node=self._node, daemon=DaemonState.GONE, message=str(error))
        except DaemonHangsError as error:
            return NodeReport(node=self._node, daemon=DaemonState.HANGS, message=str(error))
        except ProgramMissingError as error:
            return NodeReport(node=self._node, daemon=DaemonState.UNKNOWN, message=str(error))
        return NodeReport(
            node=self._node, daemon=DaemonState.ANSWERS, servers=tuple(servers), clients=tuple(clients)
        )

    def _make_client(self, server: int, pid: int) -> MpsClient:
        clients = self._report.clients if self._report is not None else ()
        before = next((client for client in clients if (client.server, client.pid) == (server, pid)), None)
        # A process that has ended, and that MPS still counts, keeps the pod that it had.
        pod = self._pod_of(pid) or (before.pod if before is not None else "")
        since = before.since if before is not None else self._now().replace(microsecond=0)
        return MpsClient(pid=pid, server=server, pod=pod, since=since)

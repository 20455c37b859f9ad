"""Looks at MPS again and again, keeps the last report, and carries orders out, one at a time."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from datetime import datetime

import structlog

from tidegate_dataplane.contract.sharing import (
    DaemonState,
    MpsClient,
    MpsServer,
    NodeOrder,
    NodeReport,
    OrderOutcome,
    OrderReport,
)
from tidegate_dataplane.node_agent.mps import DaemonGoneError, DaemonHangsError, Mps, ProgramMissingError

log = structlog.get_logger()

_KEPT_ORDERS = 16
_CONFIRM_EVERY_S = 0.1


class Watcher:
    """One node's MPS, as it is and as it was asked to be."""

    def __init__(
        self,
        node: str,
        mps: Mps,
        pod_of: Callable[[int], str],
        now: Callable[[], datetime],
        *,
        confirm_s: float,
    ) -> None:
        """`pod_of` gives the uid of the pod that a pid belongs to; `now` is the wall clock."""
        self._node = node
        self._mps = mps
        self._pod_of = pod_of
        self._now = now
        self._confirm_s = confirm_s
        self._epoch = 0
        self._orders: dict[str, OrderReport] = {}
        self._report: NodeReport | None = None
        self._changed = asyncio.Condition()
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    @property
    def report(self) -> NodeReport | None:
        """The last look; None before the first."""
        return self._report

    async def run(self, every_s: float) -> None:
        """Look until cancelled."""
        while True:
            async with self._one_at_a_time:
                await self.look()
            await asyncio.sleep(every_s)

    async def look(self) -> None:
        """Ask MPS, and wake those who wait if anything has changed."""
        report = await self._ask()
        content = report.model_dump_json(exclude={"revision"})
        report = report.model_copy(update={"revision": hashlib.sha256(content.encode()).hexdigest()[:16]})
        before, self._report = self._report, report
        if before is None or before.revision != report.revision:
            log.info("node_changed", daemon=report.daemon, servers=len(report.servers), words=report.message)
            async with self._changed:
                self._changed.notify_all()

    async def newer_than(self, revision: str, wait_s: float) -> NodeReport | None:
        """Return the report as soon as it is another than `revision`, at the latest after `wait_s`."""

        def another() -> bool:
            return self._closed or (self._report is not None and self._report.revision != revision)

        try:
            async with asyncio.timeout(wait_s), self._changed:
                await self._changed.wait_for(another)
        except TimeoutError:
            pass
        return self._report

    async def close(self) -> None:
        """Let everyone go who waits for a change: the process ends."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()

    async def carry_out(self, order: NodeOrder) -> bool:
        """Do what is ordered, unless it has been done; return whether the order counts: an older term's does not."""
        async with self._one_at_a_time:
            if order.epoch < self._epoch:
                return False
            self._epoch = order.epoch
            if order.id not in self._orders:
                outcome = await self._do(order)
                log.info("order_carried_out", id=order.id, action=order.action, outcome=outcome.outcome)
                self._orders[order.id] = outcome
                for old in list(self._orders)[:-_KEPT_ORDERS]:
                    del self._orders[old]
            await self.look()
        return True

    async def _do(self, order: NodeOrder) -> OrderReport:
        try:
            said = await self._terminate(order.server, order.client)
        except (DaemonHangsError, ProgramMissingError) as error:
            said = str(error)
        outcome = OrderOutcome.FAILED if said else OrderOutcome.DONE
        return OrderReport(id=order.id, outcome=outcome, message=said)

    async def _terminate(self, server: int, client: int) -> str:
        """Return why the client is still connected; empty once it is not."""
        said = ""
        try:
            if client not in await self._mps.clients(server):
                return ""
            said = await self._mps.terminate_client(server, client)
            async for _ in _tries(self._confirm_s):
                if client not in await self._mps.clients(server):
                    return ""
        except DaemonGoneError:
            return ""  # and no client with it
        words = f": {said}" if said else ""
        return f"client {client} is still connected {self._confirm_s:g} s after terminate_client{words}"

    async def _ask(self) -> NodeReport:
        try:
            servers = tuple(
                [
                    MpsServer(pid=pid, status=await self._mps.status(pid))
                    for pid in sorted(await self._mps.servers())
                ]
            )
            clients = [
                (server.pid, pid) for server in servers for pid in sorted(await self._mps.clients(server.pid))
            ]
        except DaemonGoneError as error:
            return self._without_daemon(DaemonState.GONE, str(error))
        except DaemonHangsError as error:
            return self._without_daemon(DaemonState.HANGS, str(error))
        except ProgramMissingError as error:
            return self._without_daemon(DaemonState.UNKNOWN, str(error))
        return NodeReport(
            node=self._node,
            daemon=DaemonState.ANSWERS,
            servers=servers,
            clients=tuple(self._client(server, pid) for server, pid in clients),
            orders=tuple(self._orders.values()),
        )

    def _without_daemon(self, state: DaemonState, words: str) -> NodeReport:
        return NodeReport(node=self._node, daemon=state, message=words, orders=tuple(self._orders.values()))

    def _client(self, server: int, pid: int) -> MpsClient:
        known = self._report.clients if self._report is not None else ()
        before = next((each for each in known if (each.server, each.pid) == (server, pid)), None)
        # A process that has ended, and that MPS still counts, keeps the pod that it had.
        pod = self._pod_of(pid) or (before.pod if before is not None else "")
        since = before.since if before is not None else self._now().replace(microsecond=0)
        return MpsClient(pid=pid, server=server, pod=pod, since=since)


async def _tries(seconds: float) -> AsyncGenerator[None]:
    """Yield again and again for so long, and once at least."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + seconds
    while True:
        yield
        if loop.time() >= ends:
            return
        await asyncio.sleep(_CONFIRM_EVERY_S)

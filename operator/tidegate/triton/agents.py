"""Client of the agents beside the models: reads what a pod serves, and sends what it should serve.

When many pods are lost at once, such as a zone, their agents are silent, and waiting for each in turn would stop all
reconciles. At most two reconciles wait for slow agents, and a silent agent is called again in the background.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import aiohttp
import structlog

from tidegate.errors import AgentSilentError, AgentUnreachableError
from tidegate.planning.plan import AgentOrder
from tidegate.planning.pods import PodView
from tidegate.resources.serving_pod import CONTROL_PORT
from tidegate.triton.agent_call import base_url, call_agent
from tidegate_dataplane.contract import AgentReport, SharedOrders, SharedReports
from tidegate_dataplane.contract.answers import make_bounded_session

_TIMEOUT: Final = aiohttp.ClientTimeout(total=3, connect=1.5)
_MAX_CALLS: Final = 64
"""Concurrent calls: enough to ask a thousand pods in well under a second without a thousand sockets."""
_MAX_SILENT_CALLS: Final = 32
"""Concurrent calls of agents that were silent, besides those."""
_PROMPT_S: Final = 0.1
"""Time within which a healthy agent answers."""
_MAX_WAITING: Final = 2
"""Callers that may wait for slow agents; of eight workers, six go on."""
_RETRY_S: Final = 2.0
"""Pause before a silent agent is called again; it doubles each time, up to _MAX_RETRY_S."""
_MAX_RETRY_S: Final = 15.0
_LATE_VALID_S: Final = 5.0
"""Time for which an answer that came too late for its caller is as good as a new one."""
_FORGET_AFTER_S: Final = 300.0
"""Time after which a pod without calls counts as gone."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _SilentAgent:
    """Pod whose agent did not answer in time."""

    pod: PodView
    due_s: float
    """Time of the next call, on the event loop's clock."""
    pause_s: float = _RETRY_S
    call: asyncio.Task[AgentReport | None] | None = None

    def applies_to(self, pod: PodView) -> bool:
        """Return whether the silence still applies to the pod: with another address or readiness it may answer."""
        return (self.pod.address, self.pod.ready) == (pod.address, pod.ready)


@dataclass(frozen=True, slots=True)
class _LateReport:
    """Report of an agent that came after its caller had given up."""

    pod: PodView
    report: AgentReport
    received_s: float


class AgentClient:
    """Client of all agents of the cluster, with one session; use it as an async context manager."""

    def __init__(self, context: ssl.SSLContext, *, port: int = CONTROL_PORT) -> None:
        self._context = context
        self._port = port
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(_MAX_CALLS)
        self._silent_slots = asyncio.Semaphore(_MAX_SILENT_CALLS)
        self._silent_pods: dict[str, _SilentAgent] = {}
        """By pod uid, in the order of the last silence."""
        self._waiting = 0
        self._late_reports: dict[str, _LateReport] = {}
        """By pod uid, the newest last."""
        self._background: set[asyncio.Task[AgentReport | None]] = set()

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            ssl=self._context, limit=_MAX_CALLS + _MAX_SILENT_CALLS, keepalive_timeout=15
        )
        self._session = make_bounded_session(_TIMEOUT, connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        calls = (silent.call for silent in self._silent_pods.values() if silent.call is not None)
        calls_in_progress = {*self._background, *calls}
        for task in calls_in_progress:
            task.cancel()
        if calls_in_progress:
            await asyncio.wait(calls_in_progress)
        if self._session is not None:
            await self._session.close()

    async def get_reports(
        self, pods: Sequence[PodView], *, partly: bool = False
    ) -> Mapping[str, AgentReport]:
        """Return the reports of the reachable pods' agents by pod uid, without those that do not answer.

        A silent agent is left out at once and called again in the background, until it answers, or its pod gets another address or
        another readiness.

        Raise AgentUnreachableError when an agent has not answered yet and too many callers already wait: its state is unknown, and
        its late answer is kept for the next call. With `partly` such an agent is left out as well.
        """
        to_call = [pod for pod in pods if pod.is_reachable and not self._is_silent(pod)]
        late_reports = {pod.uid: report for pod in to_call if (report := self._take_late(pod)) is not None}
        to_call = [pod for pod in to_call if pod.uid not in late_reports]
        if not to_call:
            return late_reports
        calls = {
            asyncio.create_task(self._read_report(pod, self._slots), name=f"ask-{pod.key}"): pod
            for pod in to_call
        }
        try:
            await asyncio.wait(calls, timeout=_PROMPT_S * (1 + len(to_call) / _MAX_CALLS))
            if self._waiting < _MAX_WAITING:
                self._waiting += 1
                try:
                    await asyncio.wait(calls)
                finally:
                    self._waiting -= 1
        finally:
            unfinished = {task: pod for task, pod in calls.items() if not task.done()}
            for task, pod in unfinished.items():
                self._finish_in_background(task, pod)
        answers = {pod.uid: task.result() for task, pod in calls.items() if task not in unfinished}
        reports = late_reports | {uid: answer for uid, answer in answers.items() if answer is not None}
        if unfinished and not partly:
            for pod in pods:
                if pod.uid in reports:
                    self._keep_late(pod, reports[pod.uid])
            pod = next(iter(unfinished.values()))
            message = f"agent of pod {pod.key} has not answered yet, and {_MAX_WAITING} reconciles already wait; the next one asks again"
            raise AgentUnreachableError(message)
        return reports

    async def send_orders(self, orders: Sequence[AgentOrder]) -> None:
        """Send every order; a failure is logged, and the next reconcile sends the order again.

        Raise LeadershipLostError when an agent has orders from a newer leader.
        """
        await asyncio.gather(*(self._send_order(order) for order in orders))

    async def send_shared_orders(self, pod: PodView, orders: SharedOrders) -> SharedReports | None:
        """Send the orders of a pod that Inferences share; return its reports, or None if its agent does not answer.

        Raise LeadershipLostError when the agent has orders from a newer leader.
        """
        url = base_url(pod.address or "", self._port) + "/v1/shared/desired"
        try:
            async with self._slots:
                return await call_agent(
                    self._session,
                    "PUT",
                    url,
                    orders.to_json(),
                    SharedReports,
                    agent=f"agent of pod {pod.key}",
                )
        except AgentUnreachableError as error:
            log.warning("shared_orders_not_delivered", pod=str(pod.key), error=str(error))
            return None

    def _is_silent(self, pod: PodView) -> bool:
        """Return whether the agent was silent at its last call; when the next one is due, call it in the background."""
        silent = self._silent_pods.get(pod.uid)
        if silent is None:
            return False
        if not silent.applies_to(pod):
            del self._silent_pods[pod.uid]
            if silent.call is not None:
                silent.call.cancel()
            return False
        if silent.due_s <= asyncio.get_running_loop().time():
            self._call_again(silent)
        return True

    def _finish_in_background(self, task: asyncio.Task[AgentReport | None], pod: PodView) -> None:
        """Let a call finish in the background and keep its answer for the next caller."""
        self._background.add(task)

        def ended(task: asyncio.Task[AgentReport | None]) -> None:
            self._background.discard(task)
            if not task.cancelled() and task.exception() is None and (report := task.result()) is not None:
                self._keep_late(pod, report)

        task.add_done_callback(ended)

    def _keep_late(self, pod: PodView, report: AgentReport) -> None:
        now = asyncio.get_running_loop().time()
        while (
            self._late_reports
            and (first := next(iter(self._late_reports.values()))).received_s < now - _LATE_VALID_S
        ):
            del self._late_reports[first.pod.uid]
        self._late_reports.pop(pod.uid, None)
        self._late_reports[pod.uid] = _LateReport(pod, report, now)

    def _take_late(self, pod: PodView) -> AgentReport | None:
        late = self._late_reports.pop(pod.uid, None)
        if late is None or late.pod.address != pod.address:
            return None
        fresh = asyncio.get_running_loop().time() - late.received_s <= _LATE_VALID_S
        return late.report if fresh else None

    def _call_again(self, silent: _SilentAgent) -> None:
        if silent.call is None or silent.call.done():
            ask = self._read_report(silent.pod, self._silent_slots)
            silent.call = asyncio.create_task(ask, name=f"ask-{silent.pod.key}-again")

    def _record_silence(self, pod: PodView) -> _SilentAgent:
        """Record that an agent did not answer in time."""
        now = asyncio.get_running_loop().time()
        while (
            self._silent_pods
            and (first := next(iter(self._silent_pods.values()))).due_s < now - _FORGET_AFTER_S
        ):
            del self._silent_pods[first.pod.uid]
        silent = self._silent_pods.pop(pod.uid, None)
        if silent is None or not silent.applies_to(pod):
            silent = _SilentAgent(pod, due_s=now)
        self._silent_pods[pod.uid] = silent
        return silent

    def _clear_silence(self, pod: PodView) -> None:
        """Forget that an agent was silent."""
        self._silent_pods.pop(pod.uid, None)

    async def _read_report(self, pod: PodView, slots: asyncio.Semaphore) -> AgentReport | None:
        try:
            report = await self._call_agent("GET", pod, "/v1/report", None, slots)
        except AgentSilentError as error:
            log.debug("agent_silent", pod=str(pod.key), error=str(error))
            silent = self._record_silence(pod)
            silent.due_s = asyncio.get_running_loop().time() + silent.pause_s
            silent.pause_s = min(2 * silent.pause_s, _MAX_RETRY_S)
            return None
        except AgentUnreachableError as error:
            log.debug("agent_silent", pod=str(pod.key), error=str(error))
            self._clear_silence(pod)
            return None
        self._clear_silence(pod)
        return report

    async def _send_order(self, order: AgentOrder) -> None:
        try:
            await self._call_agent(
                "PUT", order.pod, "/v1/desired", order.desired_state.to_json(), self._slots
            )
        except AgentUnreachableError as error:
            log.warning("order_not_delivered", pod=str(order.pod.key), error=str(error))
            return
        log.info("order_given", pod=str(order.pod.key), version=order.desired_state.version)

    async def _call_agent(
        self, method: str, pod: PodView, path: str, body: str | None, slots: asyncio.Semaphore
    ) -> AgentReport:
        url = base_url(pod.address or "", self._port) + path
        async with slots:
            return await call_agent(
                self._session, method, url, body, AgentReport, agent=f"agent of pod {pod.key}"
            )

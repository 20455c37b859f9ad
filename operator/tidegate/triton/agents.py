"""Calls the agents beside the models: asks what a pod serves, and orders what it should serve.

Where many pods are lost at once, a zone say, their agents stay silent, and nobody may wait for all of them in turn: two reconciles
at most wait for agents that do not answer at once, and one that stayed silent is asked again behind their backs.
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
from tidegate.planning.plan import Order
from tidegate.planning.pods import PodView
from tidegate.resources.pod import CONTROL_PORT
from tidegate.triton.exchange import at, exchange
from tidegate_dataplane.contract import AgentReport
from tidegate_dataplane.contract.answers import bounded_session

_TIMEOUT: Final = aiohttp.ClientTimeout(total=3, connect=1.5)
_AT_ONCE: Final = 64
"""Calls under way together: a thousand pods are asked in well under a second without a thousand sockets."""
_SILENT_AT_ONCE: Final = 32
"""Calls under way together of agents that were silent, besides those."""
_PROMPT_S: Final = 0.1
"""In which an agent that is well answers."""
_MAY_WAIT: Final = 2
"""Askers that may wait for agents that do not; of eight workers, six go on."""
_AGAIN_S: Final = 2.0
"""After which one that was silent is asked again; twice as long each time, up to a quarter of a minute."""
_AGAIN_AT_MOST_S: Final = 15.0
_LATE_COUNTS_S: Final = 5.0
"""For so long an answer that came when nobody waited for it any more is as good as a new one."""
_FORGOTTEN_S: Final = 300.0
"""A pod that nobody has asked about for so long is gone."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Silent:
    """A pod whose agent did not answer in time."""

    pod: PodView
    due_s: float
    """When it is asked again, on the loop's clock."""
    pause_s: float = _AGAIN_S
    asking: asyncio.Task[AgentReport | None] | None = None

    def is_of(self, pod: PodView) -> bool:
        """Whether this is said of the pod as it is now: at another address, or once its readiness turns, it may answer."""
        return (self.pod.address, self.pod.ready) == (pod.address, pod.ready)


@dataclass(frozen=True, slots=True)
class _Late:
    """What an agent answered after its asker had given up."""

    pod: PodView
    report: AgentReport
    heard_s: float


class Agents:
    """All agents of the cluster, by pod. One session for all; use as an async context manager."""

    def __init__(self, context: ssl.SSLContext, *, port: int = CONTROL_PORT) -> None:
        self._context = context
        self._port = port
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._silent_slots = asyncio.Semaphore(_SILENT_AT_ONCE)
        self._silent: dict[str, _Silent] = {}
        """By pod uid; the last that was silent is the last."""
        self._waiting = 0
        self._late: dict[str, _Late] = {}
        """By pod uid; the newest is the last."""
        self._background: set[asyncio.Task[AgentReport | None]] = set()

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            ssl=self._context, limit=_AT_ONCE + _SILENT_AT_ONCE, keepalive_timeout=15
        )
        self._session = bounded_session(_TIMEOUT, connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        again = (silent.asking for silent in self._silent.values() if silent.asking is not None)
        asking = {*self._background, *again}
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)
        if self._session is not None:
            await self._session.close()

    async def reports(self, pods: Sequence[PodView], *, partly: bool = False) -> Mapping[str, AgentReport]:
        """What each reachable pod's agent says, by pod uid; one that does not answer is left out.

        One that stayed silent is left out at once, and asked again in the background, until it answers, its pod has another address
        or becomes ready, or is no longer ready.

        Raises AgentUnreachableError where an agent has not answered yet and as many askers as may wait for others: nothing is known of
        it then, and what it answers meanwhile is there for whoever asks next. With `partly` it is left out as well.
        """
        asked = [pod for pod in pods if pod.reachable and not self._is_silent(pod)]
        known = {pod.uid: report for pod in asked if (report := self._take_late(pod)) is not None}
        asked = [pod for pod in asked if pod.uid not in known]
        if not asked:
            return known
        asking = {
            asyncio.create_task(self._report(pod, self._slots), name=f"ask-{pod.key}"): pod for pod in asked
        }
        try:
            await asyncio.wait(asking, timeout=_PROMPT_S * (1 + len(asked) / _AT_ONCE))
            if self._waiting < _MAY_WAIT:
                self._waiting += 1
                try:
                    await asyncio.wait(asking)
                finally:
                    self._waiting -= 1
        finally:
            late = {task: pod for task, pod in asking.items() if not task.done()}
            for task, pod in late.items():
                self._leave(task, pod)
        answers = {pod.uid: task.result() for task, pod in asking.items() if task not in late}
        heard = known | {uid: answer for uid, answer in answers.items() if answer is not None}
        if late and not partly:
            for pod in pods:
                if pod.uid in heard:
                    self._keep_late(pod, heard[pod.uid])
            pod = next(iter(late.values()))
            message = f"agent of pod {pod.key} has not answered yet, and others are waited for already"
            raise AgentUnreachableError(message)
        return heard

    async def send(self, orders: Sequence[Order]) -> None:
        """Gives every order; an agent that cannot be reached is logged and met again at the next reconcile.

        Raises LeadershipLostError when an agent has heard from a newer leader.
        """
        await asyncio.gather(*(self._send(order) for order in orders))

    def _is_silent(self, pod: PodView) -> bool:
        """Whether it was silent when it was asked last; when that is long enough ago, it is asked again, and nobody waits."""
        silent = self._silent.get(pod.uid)
        if silent is None:
            return False
        if not silent.is_of(pod):
            del self._silent[pod.uid]
            if silent.asking is not None:
                silent.asking.cancel()
            return False
        if silent.due_s <= asyncio.get_running_loop().time():
            self._ask_again(silent)
        return True

    def _leave(self, task: asyncio.Task[AgentReport | None], pod: PodView) -> None:
        """Lets a call end by itself; its answer is kept for whoever asks next."""
        self._background.add(task)

        def ended(task: asyncio.Task[AgentReport | None]) -> None:
            self._background.discard(task)
            if not task.cancelled() and task.exception() is None and (report := task.result()) is not None:
                self._keep_late(pod, report)

        task.add_done_callback(ended)

    def _keep_late(self, pod: PodView, report: AgentReport) -> None:
        now = asyncio.get_running_loop().time()
        while self._late and (first := next(iter(self._late.values()))).heard_s < now - _LATE_COUNTS_S:
            del self._late[first.pod.uid]
        self._late.pop(pod.uid, None)
        self._late[pod.uid] = _Late(pod, report, now)

    def _take_late(self, pod: PodView) -> AgentReport | None:
        late = self._late.pop(pod.uid, None)
        if late is None or late.pod.address != pod.address:
            return None
        fresh = asyncio.get_running_loop().time() - late.heard_s <= _LATE_COUNTS_S
        return late.report if fresh else None

    def _ask_again(self, silent: _Silent) -> None:
        if silent.asking is None or silent.asking.done():
            ask = self._report(silent.pod, self._silent_slots)
            silent.asking = asyncio.create_task(ask, name=f"ask-{silent.pod.key}-again")

    def _heard_nothing(self, pod: PodView) -> _Silent:
        """Remembers that an agent does not answer, or not at once."""
        now = asyncio.get_running_loop().time()
        while self._silent and (first := next(iter(self._silent.values()))).due_s < now - _FORGOTTEN_S:
            del self._silent[first.pod.uid]
        silent = self._silent.pop(pod.uid, None)
        if silent is None or not silent.is_of(pod):
            silent = _Silent(pod, due_s=now)
        self._silent[pod.uid] = silent
        return silent

    def _answered(self, pod: PodView) -> None:
        """Forgets that it was silent."""
        self._silent.pop(pod.uid, None)

    async def _report(self, pod: PodView, slots: asyncio.Semaphore) -> AgentReport | None:
        try:
            report = await self._call("GET", pod, "/v1/report", None, slots)
        except AgentSilentError as error:
            log.debug("agent_silent", pod=str(pod.key), error=str(error))
            silent = self._heard_nothing(pod)
            silent.due_s = asyncio.get_running_loop().time() + silent.pause_s
            silent.pause_s = min(2 * silent.pause_s, _AGAIN_AT_MOST_S)
            return None
        except AgentUnreachableError as error:
            log.debug("agent_silent", pod=str(pod.key), error=str(error))
            self._answered(pod)
            return None
        self._answered(pod)
        return report

    async def _send(self, order: Order) -> None:
        try:
            await self._call("PUT", order.pod, "/v1/desired", order.desired.to_json(), self._slots)
        except AgentUnreachableError as error:
            log.warning("order_not_delivered", pod=str(order.pod.key), error=str(error))
            return
        log.info("order_given", pod=str(order.pod.key), version=order.desired.version)

    async def _call(
        self, method: str, pod: PodView, path: str, body: str | None, slots: asyncio.Semaphore
    ) -> AgentReport:
        url = at(pod.address or "", self._port) + path
        async with slots:
            return await exchange(
                self._session, method, url, body, AgentReport, who=f"agent of pod {pod.key}"
            )

"""Calls the agents beside the models: asks what a pod serves, and orders what it should serve."""

import asyncio
import ssl
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import aiohttp
import structlog

from tidegate.errors import AgentUnreachableError
from tidegate.planning.plan import Order
from tidegate.planning.pods import PodView
from tidegate.resources.pod import CONTROL_PORT
from tidegate.triton.exchange import at, exchange
from tidegate_dataplane.answers import bounded_session
from tidegate_dataplane.contract import AgentReport

_TIMEOUT: Final = aiohttp.ClientTimeout(total=3, connect=1.5)
_AT_ONCE: Final = 64
"""Calls under way together: a thousand pods are asked in well under a second without a thousand sockets."""

log = structlog.get_logger(__name__)


class Agents:
    """All agents of the cluster, by pod. One session for all; use as an async context manager."""

    def __init__(self, context: ssl.SSLContext, *, port: int = CONTROL_PORT) -> None:
        self._context = context
        self._port = port
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=_AT_ONCE, keepalive_timeout=15)
        self._session = bounded_session(_TIMEOUT, connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def reports(self, pods: Iterable[PodView]) -> Mapping[str, AgentReport]:
        """What each reachable pod's agent says, by pod uid; one that does not answer is left out."""
        asked = [pod for pod in pods if pod.reachable]
        answers = await asyncio.gather(*(self._report(pod) for pod in asked))
        return {pod.uid: answer for pod, answer in zip(asked, answers, strict=True) if answer is not None}

    async def send(self, orders: Sequence[Order]) -> None:
        """Gives every order; an agent that cannot be reached is logged and met again at the next reconcile.

        Raises LeadershipLostError when an agent has heard from a newer leader.
        """
        await asyncio.gather(*(self._send(order) for order in orders))

    async def _report(self, pod: PodView) -> AgentReport | None:
        try:
            return await self._call("GET", pod, "/v1/report", None)
        except AgentUnreachableError as error:
            log.debug("agent_silent", pod=str(pod.key), error=str(error))
            return None

    async def _send(self, order: Order) -> None:
        try:
            await self._call("PUT", order.pod, "/v1/desired", order.desired.to_json())
        except AgentUnreachableError as error:
            log.warning("order_not_delivered", pod=str(order.pod.key), error=str(error))
            return
        log.info("order_given", pod=str(order.pod.key), version=order.desired.version)

    async def _call(self, method: str, pod: PodView, path: str, body: str | None) -> AgentReport:
        url = at(pod.address or "", self._port) + path
        async with self._slots:
            return await exchange(
                self._session, method, url, body, AgentReport, who=f"agent of pod {pod.key}"
            )

"""Calls the agents of GPU nodes: asks how MPS is, and orders what is to be done about it."""

import ssl
from types import TracebackType
from typing import Final, Self

import aiohttp

from tidegate.triton.exchange import at, exchange
from tidegate_dataplane.contract.answers import bounded_session
from tidegate_dataplane.contract.sharing import NodeOrder, NodeReport

WAIT_S: Final = 20
"""A call lasts so long while nothing changes."""
_CONNECT_S: Final = 2
_ORDER_S: Final = 30
"""An agent confirms what it did before it answers."""


class NodeAgentClient:
    """One session for all of them; use as an async context manager."""

    def __init__(self, context: ssl.SSLContext, *, port: int) -> None:
        self._context = context
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # No limit: each node's call waits for a change most of the time.
        connector = aiohttp.TCPConnector(ssl=self._context, limit=0, keepalive_timeout=30)
        self._session = bounded_session(aiohttp.ClientTimeout(total=_ORDER_S, connect=_CONNECT_S), connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def report(self, address: str, known: str) -> NodeReport:
        """What the agent at `address` says, as soon as it is another than revision `known`, or after WAIT_S.

        Raises AgentUnreachableError.
        """
        wait = WAIT_S if known else 0
        return await self._call("GET", address, f"/v1/node?known={known}&wait={wait}", None, wait + 5)

    async def send(self, address: str, order: NodeOrder) -> NodeReport:
        """Gives an order, and returns what is so afterwards.

        Raises AgentUnreachableError, and LeadershipLostError when the agent has heard from a newer leader.
        """
        return await self._call("PUT", address, "/v1/order", order.to_json(), _ORDER_S)

    async def _call(
        self, method: str, address: str, path: str, body: str | None, within_s: float
    ) -> NodeReport:
        return await exchange(
            self._session,
            method,
            at(address, self._port) + path,
            body,
            NodeReport,
            who=f"the node agent at {address}",
            within=aiohttp.ClientTimeout(total=within_s, connect=_CONNECT_S),
        )

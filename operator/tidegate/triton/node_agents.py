"""Client of the agents of GPU nodes: reads their reports."""

import ssl
from types import TracebackType
from typing import Final, Self

import aiohttp

from tidegate.triton.agent_call import base_url, call_agent
from tidegate_dataplane.contract.answers import make_bounded_session
from tidegate_dataplane.contract.sharing import NodeReport

WAIT_S: Final = 20
"""An agent answers after this time even if nothing has changed."""
_CONNECT_S: Final = 2
_MARGIN_S: Final = 5


class NodeAgentClient:
    """Client of all node agents, with one session; use it as an async context manager."""

    def __init__(self, context: ssl.SSLContext, *, port: int) -> None:
        self._context = context
        self._port = port
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # No limit: each node's call waits for a change most of the time.
        connector = aiohttp.TCPConnector(ssl=self._context, limit=0, keepalive_timeout=30)
        timeout = aiohttp.ClientTimeout(total=WAIT_S + _MARGIN_S, connect=_CONNECT_S)
        self._session = make_bounded_session(timeout, connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get_report(self, address: str, revision: str) -> NodeReport:
        """Return the report of the agent at `address` when its revision differs from `revision`, or after WAIT_S.

        Raise AgentUnreachableError.
        """
        wait_s = WAIT_S if revision else 0
        return await call_agent(
            self._session,
            "GET",
            f"{base_url(address, self._port)}/v1/node?known={revision}&wait={wait_s}",
            None,
            NodeReport,
            agent=f"the node agent at {address}",
            call_timeout=aiohttp.ClientTimeout(total=wait_s + _MARGIN_S, connect=_CONNECT_S),
        )

"""Agents that cannot be reached, as in a zone that is lost: a socket that takes connections and never says a word."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from builders.waiting import eventually
from tidegate.api.meta import ObjectKey
from tidegate.errors import AgentUnreachableError
from tidegate.planning.pods import PodView
from tidegate.triton.agents import AgentClient
from tidegate_dataplane.contract import AgentPhase, AgentReport


def a_pod(name: str, *, ready: bool = True) -> PodView:
    return PodView(ObjectKey("ads", name), f"uid-{name}", "", "127.0.0.1", ready=ready, terminating=False)


class LostZone:
    """Where all pods are, and how often one of them was called."""

    def __init__(self) -> None:
        self.calls = 0
        self.port = 0

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        await reader.read()
        writer.close()


@pytest_asyncio.fixture
async def zone() -> AsyncIterator[LostZone]:
    zone = LostZone()
    server = await asyncio.start_server(zone.take, "127.0.0.1", 0)
    zone.port = server.sockets[0].getsockname()[1]
    yield zone
    server.close()


async def test_a_pod_that_stayed_silent_keeps_no_reconcile_waiting_again(zone: LostZone) -> None:
    pod = a_pod("lost")
    async with AgentClient(ssl.create_default_context(), port=zone.port) as agents:
        assert await agents.get_reports([pod]) == {}
        assert zone.calls == 1
        for _ in range(50):
            again = asyncio.create_task(agents.get_reports([pod]))
            # It calls nobody, so it is done in its first step.
            await asyncio.sleep(0)
            assert again.result() == {}
        assert zone.calls == 1


async def test_a_silent_pod_is_asked_again_in_the_background_and_at_once_when_its_readiness_turns(
    zone: LostZone,
) -> None:
    async with AgentClient(ssl.create_default_context(), port=zone.port) as agents:
        await agents.get_reports([a_pod("lost")])

        async def called_again() -> bool:
            assert await agents.get_reports([a_pod("lost")]) == {}
            return zone.calls == 2

        await eventually(called_again, what="a silent pod is asked again")
        calls = zone.calls
        await agents.get_reports([a_pod("lost", ready=False)])
        assert zone.calls > calls
        calls = zone.calls
        await agents.get_reports([replace(a_pod("lost", ready=False), address="127.0.0.2")])
        assert zone.calls == calls


async def test_a_lost_zone_keeps_two_reconciles_waiting_at_most(zone: LostZone) -> None:
    async with AgentClient(ssl.create_default_context(), port=zone.port) as agents:
        reconciles = {
            asyncio.create_task(agents.get_reports([a_pod(f"lost-{number}")])) for number in range(8)
        }
        waiting = set(reconciles)
        while len(waiting) > 2:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        # Those wait for the whole time of a call, and all others were done long before.
        assert len(waiting) == 2
        await asyncio.wait(waiting)
        assert all(each.result() == {} for each in waiting)
        # Of the others nothing is known, which is not the same as an agent that cannot be reached.
        for other in reconciles - waiting:
            with pytest.raises(AgentUnreachableError, match="has not answered yet"):
                await other


class SlowAgents(AgentClient):
    """Every agent answers, but not before it is let."""

    let: asyncio.Event
    calls = 0

    async def _call_agent(self, *_: object) -> AgentReport:
        self.calls += 1
        await self.let.wait()
        return AgentReport(pod="slow", epoch=1, generation=1, phase=AgentPhase.READY)


async def test_an_agent_that_answers_late_is_heard_by_the_next_asker() -> None:
    """A throttled agent may take longer than a reconcile waits beside a lost zone."""
    async with SlowAgents(ssl.create_default_context()) as agents:
        agents.let = asyncio.Event()
        waiting = [asyncio.create_task(agents.get_reports([a_pod(name)])) for name in ("lost-1", "lost-2")]
        await eventually(lambda: agents._waiting == 2, what="two that wait")
        with pytest.raises(AgentUnreachableError, match="agent of pod ads/slow has not answered yet"):
            await agents.get_reports([a_pod("slow")])
        assert await agents.get_reports([a_pod("slow")], partly=True) == {}
        calls = agents.calls
        agents.let.set()
        await asyncio.wait(waiting)
        assert await agents.get_reports([a_pod("slow")]) == {
            "uid-slow": AgentReport(pod="slow", epoch=1, generation=1, phase=AgentPhase.READY)
        }
        assert agents.calls == calls, "what came late was asked for again"

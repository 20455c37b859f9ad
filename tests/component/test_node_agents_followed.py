"""The controllers' side of the node agents, against a real one: heard at once, obeyed, and missed when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from builders.waiting import eventually
from fixtures.mps import SERVER, NodeAgent
from tidegate.errors import AgentUnreachableError, LeadershipLostError
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate.triton.identity import client_context
from tidegate.triton.node_agents import NodeAgentClient
from tidegate_controllers.node_agents import NodeAgents
from tidegate_dataplane.contract.sharing import DaemonState, NodeAction, NodeOrder
from tidegate_localcluster.ports import HeldPort

NODE = "gpu-0"


def connected_to(port: int) -> bool:
    """Whether this process has a connection to the port."""
    connections = psutil.Process().net_connections("tcp")
    return any(each.raddr and each.raddr.port == port for each in connections)


class Followed:
    """One node's agent, and the controllers that follow it."""

    def __init__(self, agent: NodeAgent, agents: NodeAgents, pods: ObjectStore) -> None:
        self.agent, self.agents, self.pods = agent, agents, pods
        self.told: list[str] = []
        agents.subscribe(self.told.append)

    def pod(self, *, gone: bool = False) -> None:
        metadata = {"name": "agent", "namespace": "t", "uid": "u", "resourceVersion": str(len(self.told) + 1)}
        body = {
            "metadata": metadata,
            "spec": {"nodeName": NODE},
            "status": {"podIP": "127.0.0.1", "phase": "Running"},
        }
        self.pods.observe("DELETED" if gone else "MODIFIED", body)

    @property
    def daemon(self) -> DaemonState | None:
        report = self.agents.heard(NODE).report
        return report.daemon if report is not None else None


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, controllers_tls: Path) -> Iterator[NodeAgent]:
    """One that tests use one after the other."""
    with HeldPort("127.0.0.1") as held:
        port = held.number
    authority = (controllers_tls / "ca.crt").read_bytes()
    agent = NodeAgent(tmp_path_factory.mktemp("node"), NODE, authority, port=port)
    try:
        yield agent
    finally:
        agent.stop()


@pytest_asyncio.fixture
async def followed(agent: NodeAgent, controllers_tls: Path) -> AsyncGenerator[Followed]:
    agent.mps.healthy()
    if not agent.runs:
        agent.start(TIDEGATE_NODE_LOOK_EVERY_S="0.2")

    def answers() -> bool:
        changed = agent.event("node_changed")
        return changed is not None and changed["daemon"] == DaemonState.ANSWERS

    await eventually(answers, what="the agent has looked at a healthy daemon")
    pods = ObjectStore(kinds.POD)
    async with NodeAgentClient(client_context(controllers_tls), port=agent.port) as client:
        agents = NodeAgents(pods, client)
        made = Followed(agent, agents, pods)
        task = asyncio.create_task(agents.run())
        try:
            made.pod()
            await eventually(lambda: made.daemon is DaemonState.ANSWERS, what="the agent is heard")
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await eventually(lambda: not connected_to(agent.port), what="the client has let go of the agent")


async def test_change_wakes_whoever_cares_and_nothing_else_does(followed: Followed) -> None:
    assert followed.told == [NODE]
    followed.agent.mps.write(daemon="dead")
    await eventually(lambda: followed.daemon is DaemonState.GONE, what="the daemon is gone", timeout_s=30)
    assert followed.told == [NODE, NODE]


async def test_agent_that_is_asked_again_answers_at_once_though_nothing_has_changed(
    followed: Followed,
) -> None:
    def ago() -> float:
        return followed.agents.heard(NODE).ago.total_seconds()

    await eventually(lambda: ago() > 1, what="nothing has been said for a while")
    followed.agents.ask_again(NODE)
    await eventually(lambda: ago() < 1, what="the agent is heard again", timeout_s=30)
    assert followed.told == [NODE]


async def test_order_is_carried_out_and_what_is_so_afterwards_is_known_at_once(followed: Followed) -> None:
    followed.agent.mps.healthy([7001])
    order = NodeOrder(id="a", epoch=3, action=NodeAction.TERMINATE_CLIENT, server=SERVER, client=7001)
    await followed.agents.send(NODE, order)
    report = followed.agents.heard(NODE).report
    assert report is not None
    assert (report.clients, [each.id for each in report.orders]) == ((), ["a"])
    with pytest.raises(LeadershipLostError, match="epoch 2 is over"):
        await followed.agents.send(NODE, order.model_copy(update={"id": "b", "epoch": 2}))


async def test_last_words_are_kept_with_their_age_when_the_agent_is_gone(followed: Followed) -> None:
    followed.agent.stop()
    before = followed.agents.heard(NODE)
    await eventually(lambda: followed.agents.heard(NODE).ago > before.ago, what="its words grow older")
    followed.pod(gone=True)
    order = NodeOrder(id="a", epoch=1, action=NodeAction.TERMINATE_CLIENT)

    async with asyncio.timeout(20):
        while True:
            with pytest.raises(AgentUnreachableError) as refused:
                await followed.agents.send(NODE, order)
            if "no node agent runs on gpu-0" in str(refused.value):
                break
            await asyncio.sleep(0.05)
    assert followed.daemon is DaemonState.ANSWERS
    assert followed.agents.heard("gpu-1").report is None

"""The controllers' client of the node agents, against a real agent: its changes arrive at once, and its report ages when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from builders.waiting import eventually
from fixtures.mps import NodeAgent
from tidegate.kube import kinds
from tidegate.kube.store import ObjectStore
from tidegate.triton.client_identity import client_context
from tidegate.triton.node_agents import NodeAgentClient
from tidegate_controllers.node_agents import NodeAgents
from tidegate_dataplane.contract.sharing import DaemonState
from tidegate_localcluster.ports import ReservedPort

NODE = "gpu-0"


def connected_to(port: int) -> bool:
    """Whether this process has a connection to the port."""
    connections = psutil.Process().net_connections("tcp")
    return any(each.raddr and each.raddr.port == port for each in connections)


class Followed:
    """One node's agent, and the controllers that follow it."""

    def __init__(self, agent: NodeAgent, agents: NodeAgents, pods: ObjectStore) -> None:
        self.agent, self.agents, self.pods = agent, agents, pods
        self.changed: list[str] = []
        agents.subscribe(self.changed.append)

    def pod(self, *, gone: bool = False) -> None:
        metadata = {
            "name": "agent",
            "namespace": "t",
            "uid": "u",
            "resourceVersion": str(len(self.changed) + 1),
        }
        body = {
            "metadata": metadata,
            "spec": {"nodeName": NODE},
            "status": {"podIP": "127.0.0.1", "phase": "Running"},
        }
        self.pods.observe("DELETED" if gone else "MODIFIED", body)

    @property
    def daemon(self) -> DaemonState | None:
        report = self.agents.last_report(NODE).report
        return report.daemon if report is not None else None


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, controllers_tls: Path) -> Iterator[NodeAgent]:
    """One that tests use one after the other."""
    with ReservedPort("127.0.0.1") as held:
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
        agent.start(TIDEGATE_NODE_INTERVAL_S="0.2")

    def answers() -> bool:
        changed = agent.event("node_changed")
        return changed is not None and changed["daemon"] == DaemonState.ANSWERS

    await eventually(answers, what="the agent reports a healthy daemon")
    pods = ObjectStore(kinds.POD)
    async with NodeAgentClient(client_context(controllers_tls), port=agent.port) as client:
        agents = NodeAgents(pods, client)
        made = Followed(agent, agents, pods)
        task = asyncio.create_task(agents.run())
        try:
            made.pod()
            await eventually(lambda: made.daemon is DaemonState.ANSWERS, what="the agent's report has come")
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await eventually(lambda: not connected_to(agent.port), what="the client has let go of the agent")


async def test_only_a_changed_report_wakes_the_subscribers(followed: Followed) -> None:
    assert followed.changed == [NODE]
    followed.agent.mps.write(daemon="dead")
    await eventually(lambda: followed.daemon is DaemonState.GONE, what="the daemon is gone")
    assert followed.changed == [NODE, NODE]


async def test_last_report_is_kept_with_its_age_when_the_agent_is_gone(followed: Followed) -> None:
    followed.agent.stop()
    before = followed.agents.last_report(NODE)
    await eventually(lambda: followed.agents.last_report(NODE).age > before.age, what="the report ages")
    followed.pod(gone=True)
    assert followed.daemon is DaemonState.ANSWERS
    assert followed.agents.last_report("gpu-1").report is None

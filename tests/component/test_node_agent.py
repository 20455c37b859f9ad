"""The node agent as a real process beside a double of MPS's control program: what it reports, and what it mends."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from builders.waiting import wait_until
from fixtures.mps import SERVER, AskedAgent
from tidegate_dataplane.contract.sharing import DaemonState, NodeAction, NodeReport, ServerStatus

POD = "0b1c2d3e-1111-2222-3333-444455556666"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AskedAgent]:
    folder = tmp_path_factory.mktemp("node")
    with AskedAgent.running(folder, TIDEGATE_NODE_COMMAND_TIMEOUT_S="4") as running:
        yield running


@pytest.fixture
def agent(shared: AskedAgent) -> AskedAgent:
    """An agent that tests use one after the other: MPS has no client, and the controllers' term is a new one."""
    shared.epoch += 10
    shared.mps.healthy()
    shared.mps.forget_commands()
    shared.wait_for(
        "a healthy server without a client",
        lambda found: [each.status for each in found.servers] == [ServerStatus.ACTIVE] and not found.clients,
    )
    return shared


def test_reports_servers_and_clients_and_whose_they_are(agent: AskedAgent) -> None:
    agent.mps.process(7101, POD)
    agent.mps.healthy([7101, 7102])
    report = agent.wait_for("both clients", lambda found: len(found.clients) == 2)
    assert report.node == "gpu-0"
    assert [(each.pid, each.status) for each in report.servers] == [(SERVER, ServerStatus.ACTIVE)]
    assert [(each.pid, each.server, each.pod) for each in report.clients] == [
        (7101, SERVER, POD),
        (7102, SERVER, ""),
    ]
    page = agent.metrics()
    assert "tidegate_node_mps_daemon_answers 1.0" in page
    assert "tidegate_node_mps_clients 2.0" in page

    # A process that has ended while MPS still counts it keeps the pod that it had, and its age.
    (agent.mps.proc / "7101" / "cgroup").unlink()
    agent.mps.healthy([7101])
    assert agent.wait_for("one client", lambda found: len(found.clients) == 1).clients == report.clients[:1]


@pytest.mark.parametrize(
    ("daemon", "state", "words"),
    [
        ("dead", DaemonState.GONE, "Cannot find MPS control daemon process"),
        # It hangs at whatever it is asked just then.
        (
            "hung",
            DaemonState.HANGS,
            "(get_server_list|get_server_status|get_client_list) did not answer within 4 s",
        ),
    ],
)
def test_daemon_that_does_not_answer_is_told_at_once_and_in_its_own_words(
    agent: AskedAgent, daemon: str, state: DaemonState, words: str
) -> None:
    before = agent.ask()
    agent.mps.write(daemon=daemon)
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(agent.ask, before.revision, 30)
        wait_until(told.done, what="who waits is told before the time is over", timeout_s=15)
        report = told.result()
    assert (report.daemon, report.servers) == (state, ())
    assert re.fullmatch(words, report.message), report.message
    assert "tidegate_node_mps_daemon_answers 0.0" in agent.metrics()

    agent.mps.healthy()
    agent.wait_for("the daemon answers again", lambda found: found.daemon is DaemonState.ANSWERS)


def test_program_that_cannot_be_started_says_nothing_about_the_daemon(tmp_path: Path) -> None:
    program = tmp_path / "control"
    with AskedAgent.running(tmp_path, TIDEGATE_NODE_PROGRAM=str(program)) as agent:
        assert agent.ask().daemon is DaemonState.UNKNOWN
        assert "cannot be started" in agent.ask().message
        assert "No such file" in agent.ask().message
        assert "tidegate_node_mps_daemon_answers" not in agent.metrics()
        ordered = NodeReport.model_validate_json(agent.order("a", NodeAction.TERMINATE_CLIENT, client=1).body)
        assert ordered.orders[0].outcome.value == "Failed"

        part = tmp_path / "control.part"
        part.write_text("#!/bin/sh\n")
        part.chmod(0o600)
        part.rename(program)
        report = agent.wait_for("it may not be run", lambda found: "Permission denied" in found.message)
        assert report.daemon is DaemonState.UNKNOWN
        assert "cannot be started" in report.message


def test_fault_is_told(agent: AskedAgent) -> None:
    agent.mps.write(status="FAULT", clients=[7001])
    agent.wait_for("the fault", lambda found: [e.status for e in found.servers] == [ServerStatus.FAULT])


def test_nothing_is_told_while_nothing_changes(agent: AskedAgent) -> None:
    agent.mps.healthy([7001])
    before = agent.wait_for("the client", lambda found: len(found.clients) == 1)
    began = time.monotonic()
    assert agent.ask(before.revision, wait_s=1).revision == before.revision
    assert time.monotonic() - began >= 1
    assert agent.mps.commands == []


def test_agent_that_ends_lets_go_of_who_waits_for_it(tmp_path: Path) -> None:
    with AskedAgent.running(tmp_path) as agent, ThreadPoolExecutor(1) as pool:
        known = agent.ask().revision
        waiting = pool.submit(agent.ask, known, 30)
        # It is being waited on once the second call of this process is open.
        wait_until(lambda: _connections(agent) > 0, what="a call is under way", timeout_s=30)
        time.sleep(1)  # its handshake, and the request itself
        agent.stop()
        wait_until(waiting.done, what="it is let go before its time is over", timeout_s=15)
        assert waiting.result().revision == known


def _connections(agent: AskedAgent) -> int:
    assert agent.process is not None
    found = psutil.Process(agent.process.pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED for each in found)


def test_client_is_ended_once_and_what_became_of_it_is_looked_at(agent: AskedAgent) -> None:
    agent.mps.healthy([7001, 7002])
    for _ in range(2):
        answer = agent.order("gpu-0/1", NodeAction.TERMINATE_CLIENT, client=7001)
        report = NodeReport.model_validate_json(answer.body)
        outcomes = [each.outcome.value for each in report.orders if each.id == "gpu-0/1"]
        assert outcomes == ["Done"]
        assert [each.pid for each in report.clients] == [7002]
    assert agent.mps.commands == [f"terminate_client {SERVER} 7001"]
    # One that is not connected any more is as it should be.
    agent.order("gpu-0/2", NodeAction.TERMINATE_CLIENT, client=7001)
    assert len(agent.mps.commands) == 1


def test_client_that_does_not_end_is_not_said_to_have_ended(tmp_path: Path) -> None:
    with AskedAgent.running(tmp_path, TIDEGATE_NODE_CONFIRM_S="0.5") as agent:
        agent.mps.write(clients=[7001], stubborn=[7001])
        report = NodeReport.model_validate_json(
            agent.order("gpu-0/1", NodeAction.TERMINATE_CLIENT, client=7001).body
        )
        assert report.orders[0].outcome.value == "Failed"
        assert "client 7001 is still connected 0.5 s after terminate_client" in report.orders[0].message


def test_only_the_controllers_are_heard_and_only_the_newest_term(agent: AskedAgent) -> None:
    stranger = agent.authority.issue("somebody")
    assert agent.call("GET", "/v1/node", stranger).status == 403
    with pytest.raises(OSError):  # noqa: PT011 - who gives up first, and how, is up to the two TLS libraries
        agent.call("GET", "/v1/node", None)

    agent.mps.healthy([7001])
    former = agent.epoch
    agent.epoch += 1
    assert agent.order("a", NodeAction.TERMINATE_CLIENT).status == 200
    refused = agent.order("b", NodeAction.TERMINATE_CLIENT, epoch=former, client=7001)
    assert (refused.status, json.loads(refused.body)) == (409, {"error": f"epoch {former} is over"})
    assert agent.mps.clients == [7001]
    unknown = json.dumps({"id": "c", "epoch": agent.epoch, "action": "QuitDaemon"})
    assert (
        agent.call("PUT", "/v1/order", agent.authority.issue("tidegate-controllers"), unknown).status == 422
    )


@pytest.mark.parametrize("path", ["/v1/node?wait=31", "/v1/node?wait=x", "/v1/node?wait=-1"])
def test_wait_that_is_too_long_is_refused(agent: AskedAgent, path: str) -> None:
    assert agent.call("GET", path, agent.authority.issue("tidegate-controllers")).status == 422

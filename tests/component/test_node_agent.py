"""The node agent as a real process beside a double of MPS' control program: its reports, and the clients that get them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from builders.waiting import wait_until
from fixtures.mps import SERVER, AskedAgent
from tidegate_dataplane.contract.sharing import DaemonState, NodeReport, ServerStatus

POD = "0b1c2d3e-1111-2222-3333-444455556666"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AskedAgent]:
    folder = tmp_path_factory.mktemp("node")
    with AskedAgent.running(folder, TIDEGATE_NODE_COMMAND_TIMEOUT_S="4") as running:
        yield running


@pytest.fixture
def agent(shared: AskedAgent) -> AskedAgent:
    """An agent that tests use one after the other; MPS has no client."""
    shared.mps.healthy()
    shared.wait_for(
        "a healthy server without a client",
        lambda report: (
            [server.status for server in report.servers] == [ServerStatus.ACTIVE] and not report.clients
        ),
    )
    return shared


def test_reports_servers_and_clients_and_their_pods(agent: AskedAgent) -> None:
    agent.mps.process(7101, POD)
    agent.mps.healthy([7101, 7102])
    report = agent.wait_for("both clients", lambda report: len(report.clients) == 2)
    assert report.node == "gpu-0"
    assert [(server.pid, server.status) for server in report.servers] == [(SERVER, ServerStatus.ACTIVE)]
    assert [(client.pid, client.server, client.pod) for client in report.clients] == [
        (7101, SERVER, POD),
        (7102, SERVER, ""),
    ]
    page = agent.metrics()
    assert "tidegate_node_mps_daemon_answers 1.0" in page
    assert "tidegate_node_mps_clients 2.0" in page

    # A process that has ended while MPS still counts it keeps the pod that it had, and its age.
    (agent.mps.proc / "7101" / "cgroup").unlink()
    agent.mps.healthy([7101])
    report_later = agent.wait_for("one client", lambda report: len(report.clients) == 1)
    assert report_later.clients == report.clients[:1]


@pytest.mark.parametrize(
    ("daemon", "state", "words"),
    [
        ("dead", DaemonState.GONE, "Cannot find MPS control daemon process"),
        # It hangs at the command that it gets just then.
        (
            "hung",
            DaemonState.HANGS,
            "(get_server_list|get_server_status|get_client_list) did not answer within 4 s",
        ),
    ],
)
def test_daemon_that_does_not_answer_is_reported_at_once_with_the_programs_output(
    agent: AskedAgent, daemon: str, state: DaemonState, words: str
) -> None:
    before = agent.ask()
    agent.mps.write(daemon=daemon)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(agent.ask, before.revision, 30)
        wait_until(answer.done, what="the agent answers before the time is over", timeout_s=15)
        report = answer.result()
    assert (report.daemon, report.servers) == (state, ())
    assert re.fullmatch(words, report.message), report.message
    assert "tidegate_node_mps_daemon_answers 0.0" in agent.metrics()

    agent.mps.healthy()
    agent.wait_for("the daemon answers again", lambda report: report.daemon is DaemonState.ANSWERS)


def test_program_that_cannot_be_started_shows_nothing_about_the_daemon(tmp_path: Path) -> None:
    program = tmp_path / "control"
    with AskedAgent.running(tmp_path, TIDEGATE_NODE_PROGRAM=str(program)) as agent:
        assert agent.ask().daemon is DaemonState.UNKNOWN
        assert "cannot be started" in agent.ask().message
        assert "No such file" in agent.ask().message
        assert "tidegate_node_mps_daemon_answers" not in agent.metrics()

        part = tmp_path / "control.part"
        part.write_text("#!/bin/sh\n")
        part.chmod(0o600)
        part.rename(program)
        report = agent.wait_for(
            "the program may not be run", lambda report: "Permission denied" in report.message
        )
        assert report.daemon is DaemonState.UNKNOWN
        assert "cannot be started" in report.message


def test_fault_is_reported(agent: AskedAgent) -> None:
    agent.mps.write(status="FAULT", clients=[7001])
    agent.wait_for(
        "the fault", lambda report: [server.status for server in report.servers] == [ServerStatus.FAULT]
    )


def test_agent_waits_while_nothing_changes(agent: AskedAgent) -> None:
    agent.mps.healthy([7001])
    before = agent.wait_for("the client", lambda report: len(report.clients) == 1)
    began = time.monotonic()
    assert agent.ask(before.revision, wait_s=1).revision == before.revision
    assert time.monotonic() - began >= 1


def test_agent_that_ends_answers_the_clients_that_wait(tmp_path: Path) -> None:
    with AskedAgent.running(tmp_path) as agent, ThreadPoolExecutor(1) as pool:
        known = agent.ask().revision
        connection = agent.begin_asking(known, 30)
        waiting = pool.submit(lambda: connection.getresponse().read())
        agent.stop()
        wait_until(waiting.done, what="the call ends before its time is over", timeout_s=15)
        assert NodeReport.model_validate_json(waiting.result()).revision == known
        connection.close()


def test_only_the_controllers_get_a_report(agent: AskedAgent) -> None:
    stranger = agent.authority.issue("somebody")
    assert agent.get("/v1/node", stranger).status == 403
    with pytest.raises(OSError):  # noqa: PT011 - which of the two TLS libraries gives up first, and how, varies
        agent.get("/v1/node", None)


@pytest.mark.parametrize("path", ["/v1/node?wait=31", "/v1/node?wait=x", "/v1/node?wait=-1"])
def test_wait_that_is_too_long_is_refused(agent: AskedAgent, path: str) -> None:
    assert agent.get(path, agent.authority.issue("tidegate-controllers")).status == 422

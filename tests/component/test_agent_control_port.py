from __future__ import annotations

import json
import socket
import ssl
import urllib.error
from collections.abc import Iterator
from http.client import RemoteDisconnected
from pathlib import Path

import pytest

from builders.certificates import Authority, client_context
from builders.desired import a_desired_state
from builders.waiting import LONGEST_S, wait_until
from fixtures.agent import AgentAlone
from tidegate_dataplane.contract import AgentPhase

# The handshake of TLS 1.3 ends before the server has looked at the client's certificate.
REFUSED = (ssl.SSLError, urllib.error.URLError, ConnectionError, RemoteDisconnected)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentAlone]:
    with AgentAlone.running(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


def test_the_controllers_are_admitted(agent: AgentAlone) -> None:
    answer = agent.put(a_desired_state())

    assert answer.status == 200
    assert (answer.report.pod, answer.report.target, answer.report.serving) == ("ctr-0", 1, None)
    assert answer.report.phase is not AgentPhase.READY


def test_nobody_is_admitted_without_a_certificate(agent: AgentAlone) -> None:
    with pytest.raises(REFUSED):
        agent.call_without_certificate("GET", "/v1/report")


def test_a_certificate_of_another_authority_is_refused(agent: AgentAlone, tmp_path: Path) -> None:
    stranger = Authority.make(tmp_path / "stranger").issue("tidegate-controllers")

    with pytest.raises(REFUSED):
        agent.call("GET", "/v1/report", certificate=stranger)


def test_another_name_of_the_right_authority_is_refused(agent: AgentAlone) -> None:
    order = a_desired_state(generation=99).to_json()
    answer = agent.call("PUT", "/v1/desired", order, certificate=agent.issue("someone-else"))

    assert answer.status == 403
    assert agent.report().generation != 99


def test_what_is_not_an_order_is_answered_with_the_field(agent: AgentAlone) -> None:
    order = json.loads(a_desired_state().to_json()) | {"version": "three", "model": "../ctr"}

    answer = agent.call("PUT", "/v1/desired", json.dumps(order))

    assert answer.status == 422
    assert "version" in answer.body
    assert "model" in answer.body


def test_a_rotated_authority_is_taken_up_and_the_old_one_dropped(tmp_path: Path) -> None:
    with AgentAlone.running(tmp_path) as agent:
        old = agent.issue("tidegate-controllers")
        agent.rotate(Authority.make(tmp_path / "next"))

        agent.wait_until_admitted()

        with pytest.raises(REFUSED):
            agent.call("GET", "/v1/report", certificate=old)


def test_no_call_fails_while_the_authority_changes_again_and_again(tmp_path: Path) -> None:
    """Each call is a connection of its own, and each bundle has the authority before it too, as in a rotation."""
    with AgentAlone.running(tmp_path) as agent:
        before = agent.authority
        for number in range(4):
            following = Authority.make(tmp_path / f"authority-{number}", f"authority {number}")
            admitted, known = (each.issue("tidegate-controllers") for each in (following, before))
            pems = [each.certificate.read_bytes() for each in (before, following)]
            agent.mount_authority(b"".join(pems))
            refused = 0

            def taken(known: Path = known, admitted: Path = admitted) -> bool:
                nonlocal refused
                refused += sum(not agent.admits(known) for _ in range(20))
                return agent.admits(admitted)

            wait_until(taken, what="the next authority is trusted")
            assert refused == 0, "a call of whom it trusted throughout was refused"
            before = following
        assert not agent.admits(agent.authority.issue("tidegate-controllers"))


def test_a_session_from_before_is_no_way_around_a_new_authority(agent: AgentAlone) -> None:
    context = client_context(agent.issue("tidegate-controllers"))
    address = ("127.0.0.1", agent.port("control_listening", "port"))
    with context.wrap_socket(socket.create_connection(address, timeout=LONGEST_S)) as connection:
        connection.sendall(b"GET /v1/report HTTP/1.1\r\nHost: a\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        # Tickets come with the answer; with none there is nothing to go on with.
        assert connection.session is None or not connection.session.has_ticket


def test_the_control_key_is_readable_by_owner_and_group_only(agent: AgentAlone) -> None:
    key = agent.folder / "run" / "control-key"

    assert key.stat().st_mode & 0o777 == 0o640
    assert len(key.read_text()) >= 32


def test_an_artefact_that_is_not_there_is_a_failure_and_not_a_crash(agent: AgentAlone) -> None:
    agent.put(a_desired_state(uri=f"file://{agent.models}/absent"))

    report = agent.wait_for("it is not found", lambda report: report.phase is AgentPhase.FAILED)

    assert report.failure is not None
    assert "/absent/1/model.onnx" in report.failure.message


def test_metrics_tell_target_and_server(agent: AgentAlone) -> None:
    agent.put(a_desired_state(version=7))

    text = agent.metrics()

    assert "tidegate_agent_target_version 7.0" in text
    assert "tidegate_agent_triton_up 0.0" in text


def test_an_unreadable_first_order_leaves_the_agent_waiting_for_another(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "desired.json").write_text('{"owner": 3}')

    with AgentAlone.running(tmp_path) as agent:
        assert agent.report().phase is AgentPhase.STARTING
        assert agent.put(a_desired_state()).status == 200

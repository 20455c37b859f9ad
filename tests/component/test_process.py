"""Child processes: how they start, end and explain themselves."""

import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from builders.processes import is_alive
from tidegate_localcluster.errors import LocalClusterError, NotReadyError, ProcessDiedError
from tidegate_localcluster.ports import ReservedPort
from tidegate_localcluster.process import ChildProcess, wait_until

WITHIN_S = 10.0


def a_process(tmp_path: Path, script: str) -> ChildProcess:
    return ChildProcess("part", ["/bin/sh", "-c", script], log=tmp_path / "logs" / "part.log")


def test_stop_ends_it(tmp_path: Path) -> None:
    process = a_process(tmp_path, "exec sleep 60")
    process.start()
    pid = process.pid
    assert pid is not None
    process.stop()
    assert not psutil.pid_exists(pid)
    assert process.pid is None


def test_stop_kills_what_does_not_listen(tmp_path: Path) -> None:
    process = a_process(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    process.start()
    wait_until(lambda: "ready" in process.log.read_text(), description="it traps", timeout_s=WITHIN_S)
    process.stop(timeout_s=0.1)
    assert not process.running


def test_says_how_it_ended_and_its_last_words(tmp_path: Path) -> None:
    process = a_process(tmp_path, "echo the last words >&2; exit 7")
    process.start()
    with pytest.raises(
        ProcessDiedError, match=r"(?s)^part ended with exit status 7; the end of .*last words"
    ):
        wait_until(lambda: False, description="never", processes=[process], timeout_s=WITHIN_S)


def test_says_which_signal_killed_it(tmp_path: Path) -> None:
    process = a_process(tmp_path, "kill -9 $$")
    process.start()
    with pytest.raises(ProcessDiedError, match="part was killed by SIGKILL"):
        wait_until(lambda: False, description="never", processes=[process], timeout_s=WITHIN_S)


def test_says_what_it_waited_for(tmp_path: Path) -> None:
    process = a_process(tmp_path, "echo thinking; exec sleep 60")
    process.start()
    wait_until(lambda: "thinking" in process.log.read_text(), description="it thinks", timeout_s=WITHIN_S)
    with pytest.raises(NotReadyError, match=r"(?s)waited 0.2 s in vain until pigs fly.*thinking"):
        wait_until(lambda: False, description="pigs fly", processes=[process], timeout_s=0.2)
    process.stop()


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    process = ChildProcess("part", [tmp_path / "missing"], log=tmp_path / "log")
    process.start()
    with pytest.raises((ProcessDiedError, LocalClusterError), match=r"(?s)part .*missing"):
        wait_until(lambda: False, description="never", processes=[process], timeout_s=WITHIN_S)


def test_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent_program = """
        import sys
        from pathlib import Path
        from tidegate_localcluster.process import ChildProcess
        process = ChildProcess("part", ["sleep", "60"], log=Path(sys.argv[1]))
        process.start()
        print(process.pid, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(parent_program), str(tmp_path / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not is_alive(pid), description="the child is gone", timeout_s=WITHIN_S)


def test_a_held_port_is_given_to_nobody_but_who_shares_it() -> None:
    with ReservedPort("127.0.0.1") as held, socket.socket() as other, socket.socket() as sharing:
        with pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", held.number))
        sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sharing.bind(("127.0.0.1", held.number))
        sharing.listen()
        with socket.create_connection(("127.0.0.1", held.number), timeout=WITHIN_S):
            sharing.accept()[0].close()


def test_a_port_that_was_let_go_is_given_to_nobody_else_while_we_live() -> None:
    with processes_that_hold_a_port() as start:
        first, number = start()
        _, others = start()
        assert others != number
        least, most = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        assert not least <= number <= most
        first.kill()
        first.wait()
        _, after = start()
        assert after == number


def test_a_port_on_which_a_server_listens_is_not_free_although_it_shares_it_and_who_chose_it_has_ended() -> (
    None
):
    with processes_that_hold_a_port() as start, socket.socket() as server:
        first, number = start()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", number))
        server.listen()
        first.kill()
        first.wait()
        _, after = start()
        assert after != number


@contextmanager
def processes_that_hold_a_port() -> Iterator[Callable[[], tuple[subprocess.Popen[bytes], int]]]:
    """Starts processes that ask for a port, all in the same order, let it go, and live on."""
    program = """
        import random
        random.seed(1)
        from tidegate_localcluster.ports import ReservedPort
        with ReservedPort("127.0.0.1") as held:
            number = held.number
        print(number, flush=True)
        input()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with ExitStack() as started:

        def start() -> tuple[subprocess.Popen[bytes], int]:
            process = started.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            started.callback(process.kill)
            assert process.stdout is not None
            return process, int(process.stdout.readline())

        yield start

"""The TCP forwarder: bytes, half-closes and refusals pass unchanged."""

import contextlib
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate_localcluster.binaries import Binaries
from tidegate_localcluster.ports import ReservedPort

WITHIN_S = 10.0


@pytest.fixture(scope="module")
def program() -> Path:
    if shutil.which("go") is None and not Binaries().find(["forward"]):
        pytest.skip("forward is not built, and there is no go on PATH to build it with")
    return Binaries().ensure(["forward"], lambda _: None)["forward"]


@pytest.fixture
def target() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WITHIN_S)
        yield listener


@contextlib.contextmanager
def forwarding(program: Path, port: int) -> Iterator[int]:
    """The port on which connections to `port` are accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number: int = listener.getsockname()[1]
        command = [str(program), f"{listener.fileno()}=localhost:{port}"]
        with subprocess.Popen(command, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL) as process:
            listener.close()
            try:
                yield number
            finally:
                process.terminate()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_bytes_and_half_closes_pass_both_ways(program: Path, target: socket.socket) -> None:
    question, answer = bytes(range(256)) * 4096, b"answer" * 100_000

    def serve() -> None:
        with target.accept()[0] as server:
            server.settimeout(WITHIN_S)
            assert read_all(server) == question  # Ends only when the client's half-close has arrived.
            server.sendall(answer)

    serving = threading.Thread(target=serve)
    serving.start()
    with forwarding(program, target.getsockname()[1]) as port, connect(port) as client:
        client.sendall(question)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == answer
    serving.join(WITHIN_S)


def test_a_client_of_a_dead_target_is_reset(program: Path) -> None:
    with (
        ReservedPort("127.0.0.1") as nobody,
        forwarding(program, nobody.number) as port,
        # The reset may come before connect() returns.
        pytest.raises(ConnectionResetError),
        connect(port) as client,
    ):
        client.recv(1)


def test_the_client_sees_the_server_go(program: Path, target: socket.socket) -> None:
    with forwarding(program, target.getsockname()[1]) as port, connect(port) as client:
        target.accept()[0].close()
        assert client.recv(1) == b""


@pytest.mark.parametrize("argument", ["3", "x=localhost:1", "3=localhost", "9=localhost:1"])
def test_says_what_is_wrong_with_an_argument(program: Path, argument: str) -> None:
    done = subprocess.run([program, argument], capture_output=True, text=True, check=False, timeout=WITHIN_S)
    assert done.returncode == 1
    assert f"{argument}: " in done.stderr

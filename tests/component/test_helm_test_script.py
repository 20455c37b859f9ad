"""What the pod of `helm test` runs: it waits for those that are not ready yet, and names the one that never is."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fixtures.chart import CHART
from tidegate_localcluster.ports import ReservedPort

SCRIPT = (CHART / "files" / "test-ready.py").read_text()


@contextmanager
def server(*statuses: int) -> Iterator[str]:
    """Answers with one status after the other, and then with the last one."""
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}/readyz"
        found.shutdown()


def asked(wait_s: float, *urls: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, str(wait_s), *urls]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_who_becomes_ready_is_waited_for() -> None:
    with server(200) as ready, server(503, 503, 200) as late:
        done = asked(30, ready, late)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["ok", ready], ["ok", late]]


def test_who_is_never_ready_is_named_with_the_last_answer() -> None:
    with server(200) as ready, server(503) as never:
        done = asked(0, ready, never)
    assert done.returncode == 1
    assert f"not ready in 0 s: {never}" in done.stderr
    assert "503" in done.stderr


def test_who_does_not_answer_is_named_too() -> None:
    with ReservedPort("127.0.0.1") as nobody:
        gone = f"http://127.0.0.1:{nobody.number}/readyz"
        done = asked(0, gone)
    assert done.returncode == 1
    assert gone in done.stderr

"""The local cluster's client of an API server keeps its connection, and opens another where that has ended."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from builders.certificates import Authority
from tidegate_localcluster import api_client
from tidegate_localcluster.api_client import ApiClient
from tidegate_localcluster.pki import KeyPair


@dataclass
class Server:
    """What it was asked on how many connections, and how it goes on."""

    asked: list[str] = field(default_factory=list[str])
    connections: int = 0
    closes: bool = False
    """Whether it ends a connection after each answer, as one that was idle for long, without saying so before."""
    answers: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(folder: Path) -> Generator[tuple[Server, ApiClient]]:
    authority, server = Authority.make(folder), Server()
    server.answers.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            server.connections += 1
            super().setup()

        def do_GET(self) -> None:
            server.asked.append(self.path)
            server.answers.wait(30)
            body = b'{"items": []}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = server.closes

        def log_message(self, *_: object) -> None:
            """Nothing."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("server"))
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    serving = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    pem = authority.issue("client")
    url = f"https://127.0.0.1:{httpd.server_port}"
    try:
        with ApiClient(url, authority=authority.certificate, credentials=KeyPair(pem, pem)) as client:
            yield server, client
    finally:
        server.answers.set()
        httpd.shutdown()
        serving.join()
        httpd.server_close()


def test_calls_share_a_connection(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, client):
        assert [client.list_items(f"/{number}") for number in range(3)] == [[], [], []]
        assert (server.asked, server.connections) == (["/0", "/1", "/2"], 1)


def test_a_connection_that_has_ended_is_replaced_without_a_word(tmp_path: Path) -> None:
    with serving(tmp_path) as (server, client):
        server.closes = True
        assert [client.list_items(f"/{number}") for number in range(3)] == [[], [], []]
        assert (server.asked, server.connections) == (["/0", "/1", "/2"], 3)


def test_what_takes_too_long_is_not_asked_again_and_the_next_call_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "TIMEOUT_S", 0.3)
    with serving(tmp_path) as (server, client):
        client.list_items("/first")
        server.answers.clear()
        with pytest.raises(TimeoutError):
            client.list_items("/late")
        server.answers.set()
        assert client.list_items("/next") == []
        assert server.asked == ["/first", "/late", "/next"]

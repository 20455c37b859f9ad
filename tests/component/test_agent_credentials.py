"""A tenant's credentials in a real agent: used for fetching, in no log, no report and no metric."""

from __future__ import annotations

import json
import shutil
import socketserver
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from builders.certificates import Authority
from fixtures.agent import AgentAlone
from tidegate_dataplane.contract import FailureReason

CANARY = "canary-2f9d41b7"


@dataclass(slots=True)
class Guarded:
    """An HTTPS server that denies everybody, and says what it was given."""

    authority: Path
    port: int = 0
    given: list[str] = field(default_factory=list[str])

    @property
    def host(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    authority = Authority.make(tmp_path_factory.mktemp("store") / "authority")
    guarded = Guarded(authority.certificate)

    class Denies(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            guarded.given.append(given)
            self.send_error(403, given)  # a server may well say back what it was told

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.issue("store"))
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Denies) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        guarded.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield guarded
        server.shutdown()
        thread.join(10)


@pytest.fixture(scope="module")
def agent(store: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentAlone]:
    """An agent with the tenant's Secret, whose keys are those of every scheme."""
    folder = tmp_path_factory.mktemp("agent")
    secret = folder / "secret"
    secret.mkdir()
    config = json.dumps({"auths": {store.host: {"username": "ads", "password": CANARY}}})
    for name, value in {
        "token": CANARY,
        "HF_TOKEN": CANARY,
        "HF_ENDPOINT": f"https://{store.host}",
        ".dockerconfigjson": config,
        "AWS_ACCESS_KEY_ID": f"{CANARY}-id",
        "AWS_SECRET_ACCESS_KEY": CANARY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"https://{store.host}",
    }.items():
        (secret / name).write_text(value)
    settings = {
        "TIDEGATE_AGENT_SECRET_DIR": str(secret),
        "TIDEGATE_AGENT_SECRET_NAME": "models-ads",
        "TIDEGATE_AGENT_ALLOW_LOOPBACK": "true",
        "TIDEGATE_AGENT_CA_FILE": str(store.authority),
    }
    with AgentAlone.running(folder, **settings) as agent:
        yield agent
    shutil.rmtree(secret)


@pytest.mark.parametrize("scheme", ["https", "oci", "hf", "s3"])
@pytest.mark.no_rerun("a secret is seen")
def test_credentials_are_used_and_never_told(store: Guarded, agent: AgentAlone, scheme: str) -> None:
    place = {"https": f"https://{store.host}/ctr", "oci": f"oci://{store.host}/ads/ctr"}
    uri = place.get(scheme, f"{scheme}://models/ctr")
    store.given.clear()
    agent.put(agent.order(model=f"ctr-{scheme}", uri=uri, allowed_hosts=(store.host,)))
    report = agent.wait_for("the fetch has failed", lambda report: report.failure is not None)

    assert report.failure is not None
    assert report.failure.reason is FailureReason.FETCH_FAILED
    if scheme in ("https", "hf"):
        assert store.given[0] == f"Bearer {CANARY}"
        assert "Secret models-ads" in report.failure.message
    for told in (report.to_json(), agent.metrics(), agent.log.read_text()):
        assert CANARY not in told
    agent_files = [path for path in (agent.folder / "cache").rglob("*") if path.is_file()]
    assert agent_files
    assert not [path for path in agent_files if CANARY.encode() in path.read_bytes()]

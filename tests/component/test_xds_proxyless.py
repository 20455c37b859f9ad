"""Real gRPC clients without a proxy: their own xDS implementation, led by our server, calls real servers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
import yaml
from typer.testing import CliRunner

from builders.certificates import Authority
from builders.model_access import a_model_access, a_route
from builders.waiting import ends_in_time, eventually
from fixtures.envoy import ControlPlane, Envoy, Gateway, backend_of
from tidegate.main import app
from tidegate.routing.bootstrap import TlsFiles, build_sds_files
from tidegate.routing.proxyless import build_bootstrap
from tidegate.xds.identity import ServerCertificate
from tidegate.xds.server import XdsServerSettings

# Reads lines of JSON (how many calls, which metadata), answers each with who took the calls and which errors there were.
_CALLER = """
import json, sys, time
from collections import Counter
import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

channel = grpc.insecure_channel(sys.argv[1])
stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

def held(count, at_once):
    # All at once; what became of those that are done before `count` are left, then of the others.
    calls = [stub.ModelInfer.future(service_pb2.ModelInferRequest(model_name="ctr"), timeout=30) for _ in range(at_once)]
    while sum(call.done() for call in calls) < at_once - count:
        time.sleep(0.005)
    for some in ([call for call in calls if call.done()], [call for call in calls if not call.done()]):
        yield Counter(call.code().name if call.exception() else call.result().model_version for call in some)

for line in sys.stdin:
    ask = json.loads(line)
    if "held" in ask:
        for answers in held(ask["held"], ask["calls"]):
            print(json.dumps(answers), flush=True)
        continue
    answers = Counter()
    for _ in range(ask["calls"]):
        try:
            request = getattr(service_pb2, ask["method"] + "Request")(model_name="ctr")
            metadata = tuple(ask.get("metadata", {}).items())
            answer = getattr(stub, ask["method"])(request, metadata=metadata, timeout=ask["timeout"])
            answers[getattr(answer, "model_version", "")] += 1
        except grpc.RpcError as error:
            answers[error.code().name] += 1
    print(json.dumps(answers), flush=True)
"""


@dataclass
class Caller:
    """A client process."""

    process: asyncio.subprocess.Process

    async def at_once(self, count: int, *, held: int) -> Counter[str]:
        """What became of so many calls at the same time, as soon as no more than `held` of them wait; `rest` has those."""
        await self._ask({"calls": count, "held": held})
        return await self.rest()

    async def rest(self) -> Counter[str]:
        """The next line that it says."""
        assert self.process.stdout is not None
        async with ends_in_time("the caller says a line"):
            line = await self.process.stdout.readline()
        return Counter(json.loads(line))

    async def _ask(self, what: Mapping[str, object]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        await self.process.stdin.drain()

    async def calls(
        self,
        count: int,
        *,
        timeout_s: float = 10,
        method: str = "ModelInfer",
        metadata: Mapping[str, str] | None = None,
    ) -> Counter[str]:
        """Who answered so many calls, and by which status codes others failed."""
        await self._ask(
            {"calls": count, "timeout": timeout_s, "method": method, "metadata": dict(metadata or {})}
        )
        return await self.rest()


@asynccontextmanager
async def a_caller(
    port: int,
    target: str = "xds:///ctr.ads.tidegate",
    *,
    node: str = "caller-1",
    certificates: Path | None = None,
) -> AsyncGenerator[Caller]:
    """A process with the bootstrap that `tidegate xds bootstrap` prints."""
    printed = build_bootstrap(f"localhost:{port}", node, str(certificates) if certificates else None)
    environment = {**os.environ, "GRPC_XDS_BOOTSTRAP_CONFIG": printed}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", _CALLER, target),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        yield Caller(process)
    finally:
        process.kill()
        await process.wait()


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Gateway]:
    """Upstreams and a control plane; Envoy is not started."""
    async with Gateway(tmp_path) as running:
        await running.control_plane.start()
        yield running
        await running.control_plane.server.stop(at_once=True)


def weighted(one: int, other: int) -> object:
    targets = [{"inference": "one", "weight": one}, {"inference": "other", "weight": other}]
    return a_model_access(routes=[a_route("default", targets=targets)], metadata={"generation": one + 1})


async def test_weights_hold_and_a_flip_is_seen(servers: Gateway) -> None:
    backends = [backend_of(label, await servers.upstream(label)) for label in ("one", "other")]
    servers.control_plane.set(weighted(80, 20), *backends)  # type: ignore[arg-type]
    async with a_caller(servers.control_plane.port) as caller:
        answers = await caller.calls(1000)
        # One degree of freedom: a true 80/20 split exceeds this once in 10,000 runs.
        chi_square = (answers["one"] - 800) ** 2 / 800 + (answers["other"] - 200) ** 2 / 200
        assert answers.total() == answers["one"] + answers["other"] == 1000
        assert chi_square < 15.14

        servers.control_plane.set(weighted(0, 100), *backends)  # type: ignore[arg-type]

        async def flipped() -> bool:
            return await caller.calls(20) == Counter({"other": 20})

        await eventually(flipped, "the flip is seen")
        assert servers.control_plane.metric("tidegate_xds_connected_grpc_clients") == 1
        assert servers.control_plane.ledger.connected_count == 0


async def test_headers_choose_the_route(servers: Gateway) -> None:
    vip, rest, pattern = [await servers.upstream(label) for label in ("vip", "rest", "pattern")]
    access = a_model_access(
        routes=[
            a_route("vip", "vip", match={"headers": [{"name": "x-user-segment", "exact": "vip"}]}),
            a_route("pattern", "pattern", match={"headers": [{"name": "x-place", "regex": "de-[0-9]+"}]}),
            a_route("default", "rest"),
        ]
    )
    backends = [backend_of(up.label, up) for up in (vip, rest, pattern)]
    servers.control_plane.set(access, *backends)
    async with a_caller(servers.control_plane.port) as caller:
        assert await caller.calls(5, metadata={"x-user-segment": "vip"}) == Counter({"vip": 5})
        assert await caller.calls(5, metadata={"x-user-segment": "vip2"}) == Counter({"rest": 5})
        assert await caller.calls(5, metadata={"x-place": "de-7"}) == Counter({"pattern": 5})
        assert await caller.calls(5) == Counter({"rest": 5})


async def test_calls_go_on_while_the_xds_server_is_gone_and_follow_its_successor(servers: Gateway) -> None:
    one, other = await servers.upstream("one"), await servers.upstream("other")
    servers.control_plane.set(a_model_access(), backend_of("ctr", one))
    async with a_caller(servers.control_plane.port) as caller:
        assert await caller.calls(5) == Counter({"one": 5})
        await servers.lose_control_plane()
        assert await caller.calls(200) == Counter({"one": 200})
        successor = await servers.replace_control_plane()
        successor.set(a_model_access(), backend_of("ctr", other))

        async def followed() -> bool:
            answers = await caller.calls(10)
            assert set(answers) <= {"one", "other"}
            return set(answers) == {"other"}

        await eventually(followed, "the successor is followed")


async def test_replacing_the_target_loses_no_call(servers: Gateway) -> None:
    pods = [await servers.upstream(label) for label in ("one", "other")]
    servers.control_plane.set(a_model_access(), backend_of("ctr", pods[0]))
    async with a_caller(servers.control_plane.port) as caller:
        answers = await caller.calls(5)
        for number in range(10):
            name = f"ctr-v{number}"
            servers.control_plane.set(
                a_model_access(routes=[a_route("default", name)], metadata={"generation": number + 2}),
                backend_of(name, pods[number % 2]),
            )
            answers += await caller.calls(40)
    assert set(answers) == {"one", "other"}


async def test_neither_model_control_nor_a_closed_access_is_reached(servers: Gateway) -> None:
    one = await servers.upstream("one")
    servers.control_plane.set(a_model_access(), backend_of("ctr", one))
    async with a_caller(servers.control_plane.port) as caller:
        assert await caller.calls(1) == Counter({"one": 1})
        assert await caller.calls(1, method="RepositoryModelUnload") == Counter({"UNAVAILABLE": 1})
        closed = a_model_access(auth={"apiKeys": {"secret": "missing"}})
        servers.control_plane.set(closed, backend_of("ctr", one))

        async def is_closed() -> bool:
            return await caller.calls(1) == Counter({"UNAVAILABLE": 1})

        await eventually(is_closed, "nobody is let in")
    assert one.calls["RepositoryModelUnload"] == 0


async def test_a_name_that_nobody_has_reaches_nobody(servers: Gateway) -> None:
    one = await servers.upstream("one")
    servers.control_plane.set(a_model_access(), backend_of("ctr", one))
    async with a_caller(servers.control_plane.port, "xds:///nobody.ads.tidegate") as caller:
        assert await caller.calls(1, timeout_s=1) == Counter({"DEADLINE_EXCEEDED": 1})
    assert one.inferences == 0


async def test_gateways_and_grpc_clients_are_led_apart(gateway: Gateway) -> None:
    one = await gateway.upstream("one")
    client = await gateway.start(a_model_access(), backend_of("ctr", one))
    async with a_caller(gateway.control_plane.port) as caller:
        assert await caller.calls(5) == Counter({"one": 5})
        assert await client.infer(metadata=(("x-tidegate-access", "ads/ctr"),)) == "one"
    assert gateway.control_plane.ledger.connected_count == 1
    assert gateway.control_plane.metric("tidegate_xds_nacks_total", type="listener") == 0


# What protects a model, as far as gRPC knows it; status.proxylessIgnored names the rest.


async def test_more_at_once_than_allowed_is_refused(servers: Gateway) -> None:
    one = await servers.upstream("one")
    servers.control_plane.set(a_model_access(protection={"maxConcurrent": 2}), backend_of("ctr", one))
    async with a_caller(servers.control_plane.port) as caller:
        assert await caller.calls(1) == Counter({"one": 1})
        one.open.clear()
        assert await caller.at_once(6, held=2) == Counter({"UNAVAILABLE": 4})
        one.open.set()
        assert await caller.rest() == Counter({"one": 2})
    assert one.inferences == 3


async def test_the_fallback_answers_when_no_pod_can_be_reached(servers: Gateway) -> None:
    one, small = await servers.upstream("one"), await servers.upstream("small")
    backends = backend_of("ctr", one), backend_of("small", small)
    servers.control_plane.set(a_model_access(routes=[a_route(fallback={"inference": "small"})]), *backends)
    async with a_caller(servers.control_plane.port) as caller:
        assert await caller.calls(5) == Counter({"one": 5})
        await one.stop()

        async def settled() -> bool:
            return set(await caller.calls(5, timeout_s=1)) == {"small"}

        await eventually(settled, "the fallback answers")


@pytest.mark.parametrize("attempts", [0, 2])
async def test_a_call_is_tried_again_as_often_as_asked(servers: Gateway, attempts: int) -> None:
    one = await servers.upstream("one")
    one.fail_with, one.fail_every = grpc.StatusCode.UNAVAILABLE, 2
    access = a_model_access(routes=[a_route(retry={"attempts": attempts})])
    servers.control_plane.set(access, backend_of("ctr", one))
    async with a_caller(servers.control_plane.port) as caller:
        answers = await caller.calls(20)
    # Every second request fails: after the first call each one has two, or half of them fail.
    expected = Counter({"one": 20}) if attempts else Counter({"one": 10, "UNAVAILABLE": 10})
    assert (answers, one.inferences) == (expected, 39 if attempts else 20)


def test_the_bootstrap_names_the_server_and_a_client_of_its_own() -> None:
    printed = [
        json.loads(CliRunner().invoke(app, ["xds", "bootstrap", "--server", "xds.example:18000"]).output)
        for _ in range(2)
    ]
    assert {one["xds_servers"][0]["server_uri"] for one in printed} == {"xds.example:18000"}
    assert len({one["node"]["id"] for one in printed}) == 2


def test_the_control_plane_renders_nothing_for_clients_that_are_not_there() -> None:
    plane = ControlPlane()
    plane.set(a_model_access())
    assert plane.clients.newest_snapshot is None
    assert plane.clients.open_cache().snapshot is not None


# With certificates


@pytest_asyncio.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[Gateway, Authority]]:
    """The same with a control plane that shows a certificate and asks for one, and whose gateways are those of `system`."""
    authority = Authority.make(tmp_path / "authority")
    async with Gateway(tmp_path) as running:
        plane = ControlPlane(XdsServerSettings(gateway_namespace="system"))
        plane.certificate = ServerCertificate(
            authority.issue_into(tmp_path / "server", "tidegate-xds", "localhost")
        )
        running.control_plane = plane
        await plane.start()
        plane.set(a_model_access(), backend_of("ctr", await running.upstream("v1")))
        yield running, authority
        await plane.server.stop(at_once=True)


async def test_a_client_with_a_certificate_for_its_node_is_led_over_tls(
    secured: tuple[Gateway, Authority], tmp_path: Path
) -> None:
    servers, authority = secured
    keys = authority.issue_into(tmp_path / "client", "*.ads")
    async with a_caller(servers.control_plane.port, node="web-1.ads", certificates=keys) as caller:
        assert await caller.calls(5) == Counter({"v1": 5})
        assert servers.control_plane.metric("tidegate_xds_connected_grpc_clients") == 1


ANOTHERS = pytest.param(
    "another authority's", marks=pytest.mark.slow("test_xds_identity.py: the same handshake, with Envoy")
)
NONE = pytest.param(
    "no certificate", marks=pytest.mark.slow("test_xds_identity.py: the same handshake, with Envoy")
)


@pytest.mark.parametrize("wrong", [NONE, ANOTHERS, "for another node"])
async def test_a_client_without_a_certificate_for_its_node_is_not_led(
    secured: tuple[Gateway, Authority], tmp_path: Path, wrong: str
) -> None:
    servers, authority = secured
    keys: Path | None = authority.issue_into(tmp_path / "client", "*.shop")
    if wrong == "no certificate":
        keys = None
    if wrong == "another authority's":
        keys = Authority.make(tmp_path / "foreign").issue_into(tmp_path / "client", "*.ads")
        (keys / "ca.crt").write_bytes(authority.certificate.read_bytes())
    async with a_caller(servers.control_plane.port, node="web-1.ads", certificates=keys) as caller:
        answers = await caller.calls(1, timeout_s=3)
    assert answers.total() == 1
    assert set(answers) <= {"UNAVAILABLE", "DEADLINE_EXCEEDED"}
    assert servers.control_plane.metric("tidegate_xds_connected_grpc_clients") == 0


async def test_the_certificate_of_a_client_does_not_make_it_a_gateway(
    secured: tuple[Gateway, Authority], tmp_path: Path
) -> None:
    """A gateway gets the keys of callers; a client that says it is one must not."""
    servers, authority = secured
    plane = servers.control_plane

    def an_envoy(node: str, name: str) -> Envoy:
        envoy = Envoy(tmp_path / node, node)
        envoy.folder.mkdir()
        keys = authority.issue_into(tmp_path / f"keys of {node}", name)
        envoy.tls = TlsFiles(str(keys), str(envoy.folder))
        for secret, document in build_sds_files(str(keys)).items():
            (envoy.folder / f"{secret}.yaml").write_text(yaml.safe_dump(document))
        return envoy

    client, gateway = an_envoy("web-1.ads", "*.ads"), an_envoy("gateway-1.system", "*.system")
    try:
        await client.begin(plane.port)

        async def refused() -> bool:
            return plane.metric("tidegate_xds_refused_proxies_total") > 1

        await eventually(refused, "it is refused, and again when it comes back")
        assert await client.stat("listener_manager.lds.update_success") == 0
        await gateway.start(plane.port)
        assert [proxy.node for proxy in plane.ledger.build_report().proxies] == ["gateway-1.system"]
    finally:
        client.stop()
        gateway.stop()


def test_the_bootstrap_with_certificates_asks_whom_they_are_for() -> None:
    asked = ["xds", "bootstrap", "--server", "xds.example:18000", "--certificates", "/etc/keys"]
    refused = CliRunner().invoke(app, asked)
    assert refused.exit_code == 2
    assert "--node" in refused.output
    printed = json.loads(CliRunner().invoke(app, [*asked, "--node", "web-1.ads"]).output)
    (credentials,) = printed["xds_servers"][0]["channel_creds"]
    assert credentials["type"] == "tls"
    assert credentials["config"]["private_key_file"] == "/etc/keys/tls.key"
    assert printed["node"]["id"] == "web-1.ads"

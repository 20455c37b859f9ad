"""The gateways' spans: from a trace of the caller's, by Envoy's own tracer, to the decision by which the pod that answered is there."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest_asyncio

from builders.certificates import Authority
from builders.model_access import a_model_access, a_route
from builders.span_receiver import Received, SpanReceiver
from builders.waiting import eventually
from fixtures.envoy import Client, Gateway, Upstream, backend_of, with_decision
from tidegate.routing.bootstrap import CollectorSettings
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.routing.envoy.tracing import TracingSettings
from tidegate.xds.snapshot_builder import SnapshotBuilder

CTR = (("x-tidegate-access", "ads/ctr"),)
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[SpanReceiver]:
    """Takes what Envoy sends."""
    receiver = SpanReceiver()
    await receiver.start()
    yield receiver
    await receiver.stop()


async def traced(
    gateway: Gateway, endpoint: str, percent: float, *, authorities: str = "", authorization: str = ""
) -> tuple[Client, Upstream]:
    """A client of a gateway that has so many percent of the requests traced, and the only pod."""
    address = urlsplit(endpoint)
    assert address.hostname is not None
    assert address.port is not None
    gateway.envoy.collector = CollectorSettings(address.hostname, address.port, authorities, authorization)
    settings = ListenerSettings(address="127.0.0.1", port=0, tracing=TracingSettings(endpoint, percent))
    gateway.control_plane.builder = SnapshotBuilder(settings)
    upstream = await gateway.upstream("ctr")
    access = a_model_access(routes=[a_route("default", "ctr")])
    return await gateway.start(access, with_decision(backend_of("ctr", upstream), "gpu-a-7")), upstream


async def spans(receiver: SpanReceiver, count: int) -> list[Received]:
    async def come() -> list[Received] | None:
        return receiver.spans if len(receiver.spans) >= count else None

    return await eventually(come, f"{count} spans have come")


async def test_a_span_names_the_decision_and_the_pod_gets_the_trace(
    gateway: Gateway, receiver: SpanReceiver
) -> None:
    client, upstream = await traced(gateway, receiver.endpoint, 100)
    assert await client.infer(metadata=CTR) == "ctr"
    (span,) = await spans(receiver, 1)
    assert span.service == "tidegate-gateway"
    assert span.attributes["tidegate.decision"] == "gpu-a-7"
    assert span.attributes["tidegate.route"] == "access/ads/ctr/default/grpc"
    assert span.attributes["tidegate.target"] == "ads/ctr"
    assert span.attributes["upstream_cluster.name"] == "inference/ads/ctr/grpc"
    assert upstream.headers["traceparent"] == f"00-{span.trace}-{span.span}-01"
    assert not span.parent

    # A pod without a decision has none in its span.
    await gateway.control_plane.push(
        a_model_access(routes=[a_route("default", "ctr")]), backend_of("ctr", upstream)
    )
    assert await client.infer(metadata=CTR) == "ctr"
    _, span = await spans(receiver, 2)
    assert "tidegate.decision" not in span.attributes


async def test_a_callers_trace_goes_on(gateway: Gateway, receiver: SpanReceiver) -> None:
    client, upstream = await traced(gateway, receiver.endpoint, 0)
    parent = f"00-{TRACE}-00f067aa0ba902b7-01"
    assert await client.infer(metadata=(*CTR, ("traceparent", parent))) == "ctr"
    (span,) = await spans(receiver, 1)
    assert (span.trace, span.parent) == (TRACE, "00f067aa0ba902b7")
    assert upstream.headers["traceparent"] == f"00-{TRACE}-{span.span}-01"


async def test_without_sampling_only_what_a_caller_traces_is_traced(
    gateway: Gateway, receiver: SpanReceiver
) -> None:
    client, upstream = await traced(gateway, receiver.endpoint, 0)
    for metadata in (
        CTR,
        (*CTR, ("x-client-trace-id", "7")),
        (*CTR, ("x-envoy-force-trace", "true")),
        (*CTR, ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-00")),
    ):
        assert await client.infer(metadata=metadata) == "ctr"
        assert upstream.headers.get("traceparent", "-00").endswith("-00")
    # The last comes after all that Envoy had to send before.
    assert await client.infer(metadata=(*CTR, ("traceparent", f"00-{'a' * 32}-00f067aa0ba902b7-01"))) == "ctr"
    assert {span.trace for span in await spans(receiver, 1)} == {"a" * 32}
    assert upstream.inferences == 5


async def test_the_receiver_is_shown_what_it_wants_to_see(
    gateway: Gateway, receiver: SpanReceiver, tmp_path: Path
) -> None:
    (tmp_path / "authorization").write_text("Bearer of-spans")
    client, upstream = await traced(
        gateway, receiver.endpoint, 100, authorization=str(tmp_path / "authorization")
    )
    assert await client.infer(metadata=CTR) == "ctr"
    await spans(receiver, 1)
    assert receiver.authorizations == {"Bearer of-spans"}
    assert "authorization" not in upstream.headers


async def with_tls(authority: Authority, folder: Path) -> tuple[SpanReceiver, str]:
    """A receiver with a certificate for localhost, and where it is."""
    receiver, files = SpanReceiver(), authority.issue_into(folder, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "tls.crt", files / "tls.key")
    endpoint = await receiver.start(context)
    return receiver, endpoint.replace("127.0.0.1", "localhost")


async def test_a_receiver_with_tls_is_known_by_its_authority(gateway: Gateway, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ca")
    receiver, endpoint = await with_tls(authority, tmp_path / "receiver")
    try:
        client, _ = await traced(gateway, endpoint, 100, authorities=str(authority.certificate))
        assert await client.infer(metadata=CTR) == "ctr"
        await spans(receiver, 1)
    finally:
        await receiver.stop()


async def test_a_receiver_of_another_authority_gets_nothing(gateway: Gateway, tmp_path: Path) -> None:
    receiver, endpoint = await with_tls(Authority.make(tmp_path / "ca"), tmp_path / "receiver")
    stranger = str(Authority.make(tmp_path / "stranger").certificate)
    try:
        client, _ = await traced(gateway, endpoint, 100, authorities=stranger)
        assert await client.infer(metadata=CTR) == "ctr"

        async def refused() -> bool:
            return bool(await gateway.envoy.stat("cluster.tidegate-collector.ssl.fail_verify_error"))

        await eventually(refused, "Envoy refuses the receiver's certificate")
    finally:
        await receiver.stop()
    assert not receiver.spans


async def test_a_receiver_that_hangs_costs_no_request(gateway: Gateway, receiver: SpanReceiver) -> None:
    receiver.answers.clear()
    client, upstream = await traced(gateway, receiver.endpoint, 100)
    for _ in range(50):
        assert await client.infer(metadata=CTR) == "ctr"
    assert upstream.inferences == 50
    assert not receiver.spans
    receiver.answers.set()


async def test_a_gateway_from_before_takes_the_listener_all_the_same(
    gateway: Gateway, receiver: SpanReceiver
) -> None:
    """Between a change of the values and its own restart it does not know the receiver."""
    settings = ListenerSettings(address="127.0.0.1", port=0, tracing=TracingSettings(receiver.endpoint, 100))
    gateway.control_plane.builder = SnapshotBuilder(settings)
    upstream = await gateway.upstream("ctr")
    client = await gateway.start(a_model_access(), backend_of("ctr", upstream))
    assert await client.infer(metadata=CTR) == "ctr"
    (proxy,) = gateway.control_plane.ledger.build_report().proxies
    assert proxy.nack is None
    assert not receiver.requests

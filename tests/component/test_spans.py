"""Spans of our processes at a real receiver, and what one that does not answer costs: spans, and nothing else."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import structlog
from prometheus_client import CollectorRegistry

from builders.certificates import Authority
from builders.span_receiver import SpanReceiver
from builders.waiting import eventually
from fixtures.dashboard import Dashboard
from tidegate.api.meta import ObjectKey
from tidegate.errors import PermanentError, RetryableError
from tidegate.publisher.snapshot_spans import SnapshotSpans
from tidegate.routing.envoy.listener import ListenerSettings
from tidegate.routing.incremental import RoutingChange
from tidegate.runtime.clock import SystemClock
from tidegate.runtime.queue_metrics import QueueMetrics
from tidegate.runtime.workqueue import WorkQueue
from tidegate.telemetry.otlp import MAX_WAITING_SPANS, OtlpReceiver, OtlpTracer
from tidegate.telemetry.span_metrics import SpanMetrics
from tidegate.telemetry.tracing import NO_SPAN, add_attributes, mark_failed, start_span
from tidegate.web.app import create_app
from tidegate.xds.snapshot_builder import SnapshotBuilder
from tidegate_localcluster.ports import ReservedPort


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[SpanReceiver]:
    """Takes what the SDK sends."""
    receiver = SpanReceiver()
    await receiver.start()
    yield receiver
    await receiver.stop()


@contextmanager
def spans_to(receiver: OtlpReceiver, registry: CollectorRegistry) -> Iterator[OtlpTracer]:
    root = OtlpTracer(receiver, "xds", "tidegate-system/xds-1", SpanMetrics(registry))
    try:
        yield root
    finally:
        root.close()


async def arrived(receiver: SpanReceiver, name: str) -> None:
    async def come() -> bool:
        return bool(receiver.named(name))

    await eventually(come, f"a span {name} has come")


def count(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(f"tidegate_spans_{name}_total", labels) or 0.0


async def test_what_is_done_within_a_span_is_within_its_trace(receiver: SpanReceiver) -> None:
    registry = CollectorRegistry()
    with spans_to(OtlpReceiver(receiver.endpoint), registry) as root:
        with start_span("reconcile", {"tidegate.object": "ads/ctr"}, root=root):
            add_attributes({"tidegate.decision": "gpu-a-7"})
            with pytest.raises(LookupError), start_span("order", {"tidegate.pods": ("one", "two")}):
                raise LookupError("no such pod")
            with start_span("allocate", {"tidegate.replicas": 3}):
                mark_failed("refused")
        root.record_child("snapshot", {}, lasted_s=2.0)
        await arrived(receiver, "snapshot")
    (reconcile,) = receiver.named("reconcile", tidegate__object="ads/ctr", tidegate__decision="gpu-a-7")
    (order,) = receiver.named("order", tidegate__pods=("one", "two"))
    (allocate,) = receiver.named("allocate", tidegate__replicas=3)
    (snapshot,) = receiver.named("snapshot")
    assert {order.trace, allocate.trace} == {reconcile.trace}
    assert {order.parent, allocate.parent} == {reconcile.span}
    assert snapshot.trace != reconcile.trace
    assert (reconcile.failed, order.failed, allocate.failed) == (False, True, True)
    assert {each.service for each in receiver.spans} == {"tidegate-xds"}
    assert count(registry, "exported") == 4


async def test_two_tasks_do_not_mix_their_spans(receiver: SpanReceiver) -> None:
    with spans_to(OtlpReceiver(receiver.endpoint), CollectorRegistry()) as root:

        async def reconcile(key: str) -> None:
            with start_span("reconcile", {"tidegate.object": key}, root=root):
                await asyncio.sleep(0)
                with start_span("order", {"tidegate.object": key}):
                    await asyncio.sleep(0)

        await asyncio.gather(reconcile("ads/a"), reconcile("ads/b"))
        root.record_child("last", {})
        await arrived(receiver, "last")
    for key in ("ads/a", "ads/b"):
        (outer,), (inner,) = (receiver.named(name, tidegate__object=key) for name in ("reconcile", "order"))
        assert (inner.trace, inner.parent) == (outer.trace, outer.span)


async def test_a_reconcile_says_what_came_of_it(receiver: SpanReceiver) -> None:
    answers = {"ads/late": RetryableError("no answer"), "ads/wrong": PermanentError("no such field")}

    async def reconcile(key: ObjectKey) -> None:
        if (error := answers.get(str(key))) is not None:
            raise error

    with spans_to(OtlpReceiver(receiver.endpoint), CollectorRegistry()) as root:
        metrics = QueueMetrics(CollectorRegistry())
        work = WorkQueue("inference", reconcile, clock=SystemClock(), metrics=metrics, spans=root)
        for name in ("fine", "late", "wrong"):
            work.add(ObjectKey("ads", name))
        running = asyncio.ensure_future(work.run())
        for name, result in (("fine", "done"), ("late", "retried"), ("wrong", "permanent")):

            async def told(key: str = f"ads/{name}", came: str = result) -> bool:
                named = {"tidegate__object": key, "tidegate__result": came, "tidegate__queue": "inference"}
                return any(span.failed is (came != "done") for span in receiver.named("reconcile", **named))

            await eventually(told, f"ads/{name} is {result}")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_snapshot_leads_to_who_accepted_and_who_refused_it(receiver: SpanReceiver) -> None:
    snapshot = SnapshotBuilder(ListenerSettings()).apply_change(RoutingChange({}, {}))
    with spans_to(OtlpReceiver(receiver.endpoint), CollectorRegistry()) as root:
        spans = SnapshotSpans(root)
        spans.record_snapshot(snapshot, ("gpu-a-7", "gpu-b-3"), 0.2)
        spans.record_accepted("gateway-1", snapshot, 0.5)
        spans.record_rejected("gateway-2", "no such filter")
        root.record_child("last", {})
        await arrived(receiver, "last")
    (made,) = receiver.named("snapshot", tidegate__decisions=("gpu-a-7", "gpu-b-3"))
    within = [span for span in receiver.spans if span.parent == made.span]
    assert {span.attributes["tidegate.revision"] for span in (made, *within)} == {snapshot.revision}
    assert [(span.name, span.failed) for span in within] == [
        ("decision routed", False),
        ("decision routed", False),
        ("snapshot accepted", False),
        ("snapshot refused", True),
    ]
    assert receiver.named("decision routed", tidegate__decision="gpu-b-3")


async def test_a_request_to_the_dashboard_goes_on_with_its_callers_trace(
    receiver: SpanReceiver, dashboard: Dashboard
) -> None:
    caller = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    with spans_to(OtlpReceiver(receiver.endpoint), CollectorRegistry()) as root:
        for spans in (None, root.provider):
            transport = httpx.ASGITransport(create_app(dashboard.parts, {"localhost"}, spans))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
                assert (await browser.get("/api/v1/me", headers=caller)).status_code == 401
                await browser.get("/static/power.js", headers=caller)
        root.record_child("last", {})
        await arrived(receiver, "last")
    (request,) = [span for span in receiver.spans if span.name != "last"]
    assert (request.name, request.attributes["http.response.status_code"]) == ("GET /api/v1/me", 401)
    assert (request.trace, request.parent) == ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


async def test_a_receiver_that_is_not_there_costs_spans_alone() -> None:
    registry = CollectorRegistry()
    with ReservedPort("127.0.0.1") as nobody:
        endpoint = f"http://127.0.0.1:{nobody.number}"
    with structlog.testing.capture_logs() as logged:
        root = OtlpTracer(OtlpReceiver(endpoint), "xds", "p", SpanMetrics(registry))
        for _ in range(3 * MAX_WAITING_SPANS):
            root.record_child("reconcile", {"tidegate.object": "ads/ctr"})
        await asyncio.to_thread(root.close)
    # As many as wait are kept, and what the thread had taken by then besides.
    assert count(registry, "dropped", reason="waiting") >= MAX_WAITING_SPANS
    assert count(registry, "exported") == 0
    assert len([line for line in logged if line["event"] == "spans_refused"]) <= 1


async def test_a_receiver_that_refuses_is_told_once_and_counted(receiver: SpanReceiver) -> None:
    receiver.status = 400
    registry = CollectorRegistry()
    with (
        structlog.testing.capture_logs() as logged,
        spans_to(OtlpReceiver(receiver.endpoint), registry) as root,
    ):
        for number in range(1, 4):
            root.record_child("reconcile", {})

            async def counted(so_many: int = number) -> bool:
                return count(registry, "dropped", reason="refused") == so_many

            await eventually(counted, f"{number} spans are counted as dropped")
        receiver.status = 200
        root.record_child("snapshot", {})
        await arrived(receiver, "snapshot")

        async def told() -> bool:
            return "spans_taken_again" in [line["event"] for line in logged]

        await eventually(told, "it is told that spans are taken again")
    ours = [line for line in logged if line.get("receiver") == f"{receiver.endpoint}/v1/traces"]
    assert [line["event"] for line in ours] == ["spans_refused", "spans_taken_again"]
    refused = ours[0]
    assert "400" in refused["error"]
    assert count(registry, "exported") == 1


async def test_a_receiver_with_tls_is_shown_what_it_wants_to_see(tmp_path: Path) -> None:
    authority, receiver = Authority.make(tmp_path), SpanReceiver()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("receiver"))
    ca, secret = authority.certificate, tmp_path / "authorization"
    secret.write_text("Bearer of-spans\n")
    await receiver.start(context)
    registry = CollectorRegistry()
    try:
        with spans_to(OtlpReceiver(receiver.endpoint, ca, secret), registry) as root:
            root.record_child("snapshot", {})
            await arrived(receiver, "snapshot")
        strangers = CollectorRegistry()
        with spans_to(OtlpReceiver(receiver.endpoint), strangers) as root:
            root.record_child("snapshot", {})

            async def refused() -> bool:
                return count(strangers, "dropped", reason="refused") == 1

            await eventually(refused, "who does not know the authority sends nothing")
    finally:
        await receiver.stop()
    assert receiver.authorizations == {"Bearer of-spans"}
    assert len(receiver.spans) == 1


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=f"cannot read {tmp_path}/authorization"):
        OtlpTracer(
            OtlpReceiver("http://c:4318", None, tmp_path / "authorization"),
            "web",
            "p",
            SpanMetrics(CollectorRegistry()),
        )


def test_without_a_receiver_nothing_is_imported_or_recorded() -> None:
    program = (
        "import sys; import tidegate_controllers.process, tidegate.processes.xds, tidegate.processes.web;"
        "print(sorted(name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with start_span("reconcile", {}, root=NO_SPAN) as doing, start_span("order", {}) as within:
        assert doing is within is NO_SPAN

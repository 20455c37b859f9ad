"""From an AllocationDecision to the snapshot that brings its pods, and to the gateway's acceptance: spans of real processes on a real API server."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from builders.metrics_page import metric
from builders.span_receiver import Received, SpanReceiver
from builders.waiting import wait_until
from fixtures.allocated import Allocated
from fixtures.processes import KeptControllers, Running, controllers_settings, tidegate
from fixtures.xds_process import xds_ports
from tidegate.routing import protos
from tidegate.xds.resources import TypeUrl


@pytest.fixture(scope="module")
def receiver() -> Iterator[SpanReceiver]:
    """Takes spans in a thread of its own, since tests and processes here wait for each other."""
    receiver, loop = SpanReceiver(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(receiver.start(), loop).result(10)
        yield receiver
        asyncio.run_coroutine_threadsafe(receiver.stop(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture(scope="module")
def controllers(kept_controllers: KeptControllers, controllers_tls: Path, receiver: SpanReceiver) -> Running:
    """Leading, and exporting spans."""
    return kept_controllers.lead(
        {**controllers_settings(controllers_tls), "otlp_endpoint": receiver.endpoint}
    )


class AcceptingGateway:
    """A stream as a gateway opens it, which accepts all that it gets; a real one would want port 8080 of the machine."""

    METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"

    def __init__(self, channel: grpc.Channel, node: str) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        for type_url in (TypeUrl.CLUSTER, TypeUrl.LISTENER, TypeUrl.SCOPE):
            self._ask(type_url, node={"id": node})
        self._call: Any = channel.stream_stream(self.METHOD)(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def leave(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._thread.join(10)

    def _accept(self) -> None:
        try:
            for body in self._call:
                response = protos.decode("envoy.service.discovery.v3.DeltaDiscoveryResponse", body)
                self._ask(response.type_url, response_nonce=response.nonce)
                if response.type_url == TypeUrl.CLUSTER:
                    names = [cluster.name for cluster in response.resources]
                    self._ask(TypeUrl.ENDPOINT, resource_names_subscribe=names)
        except grpc.RpcError:
            return

    def _ask(self, type_url: str, **fields: Any) -> None:
        request = {"type_url": type_url, **fields}
        self._requests.put(protos.encode("envoy.service.discovery.v3.DeltaDiscoveryRequest", request))


def come(receiver: SpanReceiver, name: str, **attributes: object) -> Received:
    """The newest of these spans, once there is one."""
    wait_until(
        lambda: bool(receiver.named(name, **attributes)),
        what=f"a span '{name}' with {attributes} has come",
    )
    return receiver.named(name, **attributes)[-1]


def addresses(allocated: Allocated) -> None:
    """Says of every pod, as a kubelet would, at which address it is."""
    kubectl, namespace = allocated.kubectl, allocated.pools.namespace
    for number, pod in enumerate(kubectl.json("get", "pods", "-n", namespace)["items"], 1):
        address = f"127.0.9.{number}"
        patch = {"status": {"podIP": address, "podIPs": [{"ip": address}]}}
        where = ("-n", namespace, "--subresource=status", "--type=merge", "-p", json.dumps(patch))
        kubectl("patch", "pod", pod["metadata"]["name"], *where)


def test_a_decision_leads_to_its_pods_and_to_the_gateways(
    allocated: Allocated, controllers: Running, kubeconfig: Path, receiver: SpanReceiver, tmp_path: Path
) -> None:
    allocated.mode("Auto")
    allocated.model("ctr", 1, 3)
    allocated.settled(ctr=1)
    allocated.override("sale", "ctr", floor={"replicas": 3})
    decision = allocated.decided(ctr=3)["metadata"]["name"]
    allocated.settled(ctr=3)

    addresses(allocated)

    decided = come(receiver, "decide", tidegate__decision=decision)
    assert decided.attributes["tidegate.pool"] == allocated.pool
    wait_until(
        lambda: any(span.span == decided.parent for span in receiver.named("reconcile")),
        what="the reconcile that decided comes",
    )
    pass_ = next(span for span in receiver.named("reconcile") if span.span == decided.parent)
    assert pass_.attributes["tidegate.queue"] == "allocator"
    inference = f"{allocated.pools.namespace}/ctr"
    given = come(receiver, "allocate", tidegate__decision=decision)
    assert (given.attributes["tidegate.inference"], given.attributes["tidegate.replicas"]) == (inference, 3)
    assert given.service == "tidegate-controllers"
    come(receiver, "reconcile", tidegate__object=inference, tidegate__decision=decision)
    # The spans come before they are counted.
    wait_until(
        lambda: metric(controllers.metrics(), "tidegate_spans_exported_total") > 0, what="they are counted"
    )

    ports = xds_ports()
    with (
        tidegate("xds", kubeconfig, tmp_path, **ports, otlp_endpoint=receiver.endpoint),
        grpc.insecure_channel(f"127.0.0.1:{ports['xds_port']}") as channel,
    ):
        routed = come(receiver, "decision routed", tidegate__decision=decision)
        snapshot = next(span for span in receiver.named("snapshot") if span.span == routed.parent)
        assert decision in snapshot.attributes["tidegate.decisions"]
        assert routed.attributes["tidegate.revision"] == snapshot.attributes["tidegate.revision"]
        assert not receiver.named("snapshot accepted")
        gateway = AcceptingGateway(channel, "gateway-1")
        try:
            accepted = come(receiver, "snapshot accepted", tidegate__gateway="gateway-1")
        finally:
            gateway.leave()
        # That which brings the decision, or a later one: other objects of this API server may change too.
        made = [span.attributes["tidegate.revision"] for span in receiver.named("snapshot")]
        least = made.index(snapshot.attributes["tidegate.revision"])
        assert accepted.attributes["tidegate.revision"] in made[least:]
        assert accepted.service == "tidegate-xds"
    # Another decision than that which is there leads nowhere.
    assert not receiver.named("decision routed", tidegate__decision=f"{decision}0")

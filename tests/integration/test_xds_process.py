"""`tidegate xds` as a real process against a real API server: what it sends follows the objects, and it ends in good order."""

from __future__ import annotations

import json
import queue
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from builders.inference import inference_body
from builders.model_access import a_route, model_access_body
from fixtures.control_plane import Kubectl
from fixtures.processes import tidegate
from tidegate.routing import protos
from tidegate.routing.snapshot import TypeUrl
from tidegate_localcluster.ports import HeldPort
from tidegate_localcluster.process import wait_until

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"


class Stream:
    """An ADS stream that asks for one type, accepts all it gets, and has the newest of it."""

    def __init__(self, channel: grpc.Channel, type_url: TypeUrl, names: Sequence[str] = ()) -> None:
        self._type_url = type_url
        self._names = names
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        self._requests.put(self._request("", ""))
        self.call: Any = channel.stream_stream(METHOD)(iter(self._requests.get, None))

    def next(self) -> dict[str, Any]:
        """The next response, by name of resource; waits for it."""
        response = protos.decode("envoy.service.discovery.v3.DiscoveryResponse", next(self.call))
        self._requests.put(self._request(response.version_info, response.nonce))
        bodies = [protos.described(resource.SerializeToString()) for resource in response.resources]
        return {str(body["name"]): body for body in bodies}

    def until(self, what: str, condition: Any) -> dict[str, Any]:
        """The first response of which `condition` is true; fails after a hundred that are not."""
        for _ in range(100):
            found = self.next()
            if condition(found):
                return found
        pytest.fail(f"not in a hundred responses: {what}")

    def _request(self, version: str, nonce: str) -> bytes:
        fields = {"type_url": self._type_url, "resource_names": self._names, "version_info": version}
        return protos.encode(
            "envoy.service.discovery.v3.DiscoveryRequest",
            {**fields, "response_nonce": nonce, "node": {"id": "gateway-1"}},
        )


@contextmanager
def xds(kubeconfig: Path, folder: Path) -> Iterator[tuple[Any, grpc.Channel]]:
    """The process, ready, and a channel to it."""
    with HeldPort("127.0.0.1") as held, HeldPort("127.0.0.1") as report:
        port, report_port = held.number, report.number
    with (
        tidegate("xds", kubeconfig, folder, xds_port=str(port), report_port=str(report_port)) as running,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        grpc.channel_ready_future(channel).result(20)
        yield running, channel


def fresh(body: dict[str, Any], **spec: Any) -> str:
    """The object as a user would write it."""
    names = {key: body["metadata"][key] for key in ("name", "namespace")}
    return json.dumps({**body, "metadata": names, "spec": {**body["spec"], **spec}})


def test_what_a_proxy_gets_follows_the_objects(
    kubectl: Kubectl, kubeconfig: Path, crds: None, namespace: str, tmp_path: Path
) -> None:
    del crds
    kubectl("apply", "-f", "-", stdin=fresh(inference_body("one", namespace)))
    with xds(kubeconfig, tmp_path) as (_, channel):
        clusters, routes = (
            Stream(channel, TypeUrl.CLUSTER),
            Stream(channel, TypeUrl.SCOPE),
        )
        cluster, host = f"inference/{namespace}/one/grpc", f"access/{namespace}/ctr"
        assert cluster in clusters.next()
        assert host not in routes.next()

        access = model_access_body("ctr", namespace, routes=[a_route("default", "one")])
        kubectl("apply", "-f", "-", stdin=fresh(access))
        routes.until("the access is routed", lambda found: host in found)

        kubectl("delete", "inference", "one", "-n", namespace)
        clusters.until("the cluster is gone", lambda found: cluster not in found)
        kubectl("delete", "modelaccess", "ctr", "-n", namespace)
        routes.until("the access is gone", lambda found: host not in found)


def test_a_process_that_is_told_to_stop_ends_its_streams_in_good_order(
    kubectl: Kubectl, kubeconfig: Path, crds: None, tmp_path: Path
) -> None:
    del kubectl, crds
    with xds(kubeconfig, tmp_path) as (running, channel):
        stream = Stream(channel, TypeUrl.LISTENER)
        assert stream.next()
        running.process.send_signal(signal.SIGTERM)
        with pytest.raises(StopIteration):
            stream.next()
        assert stream.call.code() is grpc.StatusCode.OK
        wait_until(lambda: running.process.poll() is not None, what="the process has ended", timeout_s=20)
        assert running.process.returncode == 0


def test_a_process_that_is_killed_does_not(
    kubectl: Kubectl, kubeconfig: Path, crds: None, tmp_path: Path
) -> None:
    """The control."""
    del kubectl, crds
    with xds(kubeconfig, tmp_path) as (running, channel):
        stream = Stream(channel, TypeUrl.LISTENER)
        assert stream.next()
        running.process.kill()
        with pytest.raises(grpc.RpcError):
            stream.next()

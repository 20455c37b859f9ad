"""Changes that overtake each other on their way to a real Envoy."""

from __future__ import annotations

from typing import Any

import pytest

from builders.model_access import a_model_access, a_route
from fixtures.envoy import Gateway, backend_of
from tidegate.xds.messages import DiscoveryResponse
from tidegate.xds.resources import TypeUrl
from tidegate.xds.stream import DiscoveryStream

NEW = (("x-tidegate-access", "ads/new"),)


async def test_a_cluster_that_changes_before_its_endpoints_went_out_serves_at_once(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry budget changes the cluster of an Inference that has only just come: `kubectl apply` of both at once."""
    pod = await gateway.upstream("pod")
    client = await gateway.start(a_model_access(), backend_of("ctr", pod))
    control_plane = gateway.control_plane
    backends = [backend_of("ctr", pod), backend_of("new", pod)]
    access = a_model_access(
        "new", routes=[a_route("default", "new", retry={"attempts": 1, "budgetPercent": 20})]
    )
    first = control_plane.build(a_model_access(), *backends)
    second = control_plane.build(a_model_access(), access, *backends)
    cluster = "inference/ads/new/grpc"
    versions = {one.resources[TypeUrl.CLUSTER][cluster].version for one in (first, second)}
    assert len(versions) == 2, "the second is to change the cluster"
    take = DiscoveryStream[Any].on_request
    overtaken: list[TypeUrl] = []

    def overtaking(stream: DiscoveryStream[Any], request: Any, now: float) -> list[DiscoveryResponse]:
        """The second snapshot arrives just before the proxy asks for the endpoints of the first."""
        responses: list[DiscoveryResponse] = []
        if request.type_url == TypeUrl.ENDPOINT and control_plane.cache.snapshot is first and not overtaken:
            overtaken.append(TypeUrl.ENDPOINT)
            responses = stream.on_snapshot(second, now)
            control_plane.cache.set(second)
        return responses + take(stream, request, now)

    monkeypatch.setattr(DiscoveryStream, "on_request", overtaking)
    control_plane.cache.set(first)
    await control_plane.accepted(second)
    assert overtaken
    assert await client.infer(metadata=NEW) == "pod"
    assert await gateway.envoy.stat("cluster_manager.warming_clusters") == 0

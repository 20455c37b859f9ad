"""A pipeline's route in a real Envoy: how its requests are counted, and what becomes of its pods' calls once it is gone."""

from __future__ import annotations

from builders.model_access import a_model_access, a_route
from builders.pipeline import part_headers
from fixtures.envoy import Gateway, Upstream, backend_of
from tidegate.api.meta import ObjectKey
from tidegate.routing.fleet import Backend
from tidegate.routing.pipelines import pipeline_key

INFER = "/v2/models/ctr/infer"
SCENE = ObjectKey("ads", "scene")
FRONT_DOOR = {"x-tidegate-access": str(SCENE)}
PIPELINE = {"name": "home", "pipeline": {"models": [{"inference": "ctr", "as": "pctr"}]}}


def pods(*answering: Upstream) -> Backend:
    """The pods of the route, which call ctr from this machine."""
    endpoints = tuple(one.endpoint for one in answering)
    return Backend(pipeline_key(SCENE, "home"), "scene", endpoints, calls=("ctr",), callers=("127.0.0.1",))


async def test_requests_of_every_pipeline_are_one_metric_by_cluster(gateway: Gateway) -> None:
    front, ctr = await gateway.upstream("front"), await gateway.upstream("ctr")
    scene = a_model_access("scene", routes=[PIPELINE])
    client = await gateway.start(scene, backend_of("ctr", ctr), pods(front))
    for _ in range(3):
        assert (await client.rest("POST", INFER, headers=FRONT_DOOR))[0] == 200

    page = await gateway.envoy.get_admin("/stats/prometheus")
    family = "envoy_cluster_upstream_rq_total"
    counted = [line for line in page.splitlines() if line.startswith(f"{family}{{") and "pipeline/" in line]
    assert f'{family}{{envoy_cluster_name="pipeline/ads/scene/home/http"}} 3' in counted


async def test_pods_of_a_route_that_is_gone_call_their_models_until_they_end(gateway: Gateway) -> None:
    front, ctr = await gateway.upstream("front"), await gateway.upstream("ctr")
    inference = backend_of("ctr", ctr)
    scene = a_model_access("scene", routes=[PIPELINE])
    client = await gateway.start(scene, inference, pods(front))
    scene = a_model_access("scene", routes=[a_route("home", "ctr")])
    await gateway.control_plane.push(scene, inference, pods(front))

    # Clients have another answer at once; the pods may finish what they have begun.
    assert (await client.rest("POST", INFER, headers=FRONT_DOOR))[0] == 200
    assert (front.inferences, ctr.inferences) == (0, 1)
    assert (await client.rest("POST", INFER, headers=part_headers(scene)))[0] == 200
    assert ctr.inferences == 2

    await gateway.control_plane.push(scene, inference)
    assert (await client.rest("POST", INFER, headers=part_headers(scene)))[0] == 404
    assert ctr.inferences == 2

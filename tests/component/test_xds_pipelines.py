"""Who may call at a pipeline's host for parts, in a real Envoy: its own pods, by the address that they call from, and nobody else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiohttp
import grpc.aio
import pytest

from builders.fleet import credentials
from builders.model_access import a_model_access
from builders.pipeline import part_headers
from fixtures.envoy import Client, Gateway, Upstream, backend_of
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing.fleet import Backend, BackendKey, BackendKind
from tidegate.routing.pipelines import parts_target, pipeline_key

INFER = "/v2/models/ctr/infer"
ALICE = "canary-alice-0123456789"
KEYS = credentials({"callers": {"alice": ALICE.encode()}})
POD, NEXT_POD, STRANGER = "127.0.0.77", "127.0.0.78", "127.0.0.7"
SCENE = ObjectKey("ads", "scene")
AUTH = {"apiKeys": {"secret": "callers"}}


def a_scene(**spec: Any) -> ModelAccess:
    pipeline = {"models": [{"inference": "ctr", "as": "pctr"}]}
    return a_model_access("scene", routes=[{"name": "all", "timeout": "10s", "pipeline": pipeline}], **spec)


def pods(*callers: str, answering: Sequence[Upstream] = ()) -> Backend:
    """The pipeline's pods: those that answer, and the addresses of all."""
    endpoints = tuple(one.endpoint for one in answering)
    return Backend(pipeline_key(SCENE, "all"), "scene", endpoints, calls=("ctr",), callers=callers)


async def status_from(
    source: str, client: Client, headers: dict[str, str], path: str = INFER, method: str = "POST"
) -> int:
    """What becomes of a REST call from that address."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(source, 0))) as session,
        session.request(method, f"http://{client.address}{path}", headers=headers, data=b"{}") as answer,
    ):
        await answer.read()
        return answer.status


@pytest.mark.parametrize("spec", [{}, {"auth": AUTH}], ids=["open", "keyed"])
async def test_the_access_s_own_pods_call_its_parts_and_nobody_else(
    gateway: Gateway, spec: dict[str, Any]
) -> None:
    ctr, front = await gateway.upstream("ctr"), await gateway.upstream("front")
    scene = a_scene(**spec)
    client = await gateway.start(scene, backend_of("ctr", ctr), pods(POD, NEXT_POD, answering=[front]), KEYS)
    inside = part_headers(scene)
    # They have no key, and need none.
    assert [await status_from(pod, client, inside) for pod in (POD, NEXT_POD)] == [200, 200]
    assert ctr.inferences == 2

    for sent in (
        {},
        {"x-api-key": ALICE},
        {"x-forwarded-for": POD},
        {"x-real-ip": POD, "forwarded": f"for={POD}"},
        {"x-envoy-external-address": POD},
        {"x-tidegate-part": "no-such"},
    ):
        assert await status_from(STRANGER, client, {**inside, **sent}) == 403, sent
    assert await status_from(STRANGER, client, inside, "/v2/models/ctr/ready", "GET") == 403
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.infer(metadata=tuple(inside.items()))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert ctr.inferences == 2
    assert ctr.calls["ready"] == 0

    # What the pod may do by its address is to call parts: clients of the access are let in as ever.
    front_door = {"x-tidegate-access": str(SCENE)}
    assert await status_from(POD, client, front_door) == (401 if spec else 200)
    assert await status_from(STRANGER, client, {**front_door, "x-api-key": ALICE}) == 200


async def test_who_is_refused_at_the_parts_is_counted(gateway: Gateway) -> None:
    ctr = await gateway.upstream("ctr")
    scene = a_scene(auth=AUTH)
    client = await gateway.start(scene, backend_of("ctr", ctr), pods(POD, answering=[ctr]), KEYS)
    for source in (STRANGER, POD, STRANGER):
        await status_from(source, client, part_headers(scene))
    page = await gateway.envoy.get_admin("/stats/prometheus")
    counted = [line for line in page.splitlines() if "tidegate_refused{" in line]
    route = f'route="access/{parts_target(scene)}/ctr/http"'
    why = 'reason="rbac_access_denied_matched_policy[strangers]"'
    cluster = 'envoy_cluster_name="inference/ads/ctr/http"'
    assert counted == [f"envoy_tidegate_refused{{{route},{why},{cluster}}} 2"]


async def test_the_guard_follows_the_pods_and_without_any_lets_nobody_in(gateway: Gateway) -> None:
    ctr = await gateway.upstream("ctr")
    scene, inference = a_scene(), backend_of("ctr", ctr)
    client = await gateway.start(scene, inference)
    seen: list[list[int]] = []
    # None known, none there, one on its way in, another beside it, and that one alone.
    for fleet in ([], [pods()], [pods(POD)], [pods(POD, NEXT_POD, answering=[ctr])], [pods(NEXT_POD)]):
        await gateway.control_plane.push(scene, inference, *fleet)
        seen.append(
            [await status_from(pod, client, part_headers(scene)) for pod in (POD, NEXT_POD, STRANGER)]
        )
    assert seen == [[403, 403, 403], [403, 403, 403], [200, 403, 403], [200, 200, 403], [403, 200, 403]]


async def test_an_access_that_is_closed_is_closed_at_its_parts_too(gateway: Gateway) -> None:
    """Nothing answers clients while its Secret is missing, whatever they ask for."""
    ctr = await gateway.upstream("ctr")
    scene = a_scene(auth=AUTH)
    client = await gateway.start(scene, backend_of("ctr", ctr), pods(POD, answering=[ctr]), credentials({}))
    assert await status_from(STRANGER, client, {"x-tidegate-access": str(SCENE), "x-api-key": ALICE}) == 503
    assert await status_from(STRANGER, client, part_headers(scene)) == 403
    assert ctr.inferences == 0


async def test_pods_of_one_access_do_not_call_the_parts_of_another(gateway: Gateway) -> None:
    ctr = await gateway.upstream("ctr")
    scene = a_scene()
    other = ModelAccess.parse({**scene.dump(), "metadata": a_model_access("other").dump()["metadata"]})
    of_other = Backend(
        BackendKey(BackendKind.PIPELINE, "ads", "other.all"), "other", calls=("ctr",), callers=(NEXT_POD,)
    )
    client = await gateway.start(scene, other, backend_of("ctr", ctr), pods(POD), of_other)
    assert [await status_from(pod, client, part_headers(scene)) for pod in (POD, NEXT_POD)] == [200, 403]
    assert [await status_from(pod, client, part_headers(other)) for pod in (POD, NEXT_POD)] == [403, 200]


async def test_pods_of_either_ip_family_are_taken_by_envoy(gateway: Gateway) -> None:
    ctr = await gateway.upstream("ctr")
    scene = a_scene()
    client = await gateway.start(scene, backend_of("ctr", ctr), pods(POD, "fd00::77"))
    assert [await status_from(one, client, part_headers(scene)) for one in (POD, STRANGER)] == [200, 403]

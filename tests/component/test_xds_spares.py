"""In a real Envoy, pods that Inferences share get the share of an Inference's own pods that do not answer, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import grpc.aio
import pytest

from builders.model_access import a_model_access, a_route
from builders.waiting import eventually
from fixtures.envoy import Client, Gateway, Load, Upstream, backend_of
from tidegate.api.model_access import ModelAccess
from tidegate.routing.fleet import Backend

CTR = (("x-tidegate-access", "ads/ctr"),)
DETECTED_S = 11.0
"""Up to 5 s until the first check after the first request, two of 1 s with pauses of 0.5 s, and 3 s for a busy machine."""


def with_spare(backend: Backend, spares: Sequence[Upstream], decided: float) -> Backend:
    return backend.with_spares([spare.endpoint for spare in spares], decided)


async def ask(client: Client, count: int) -> Counter[str]:
    """Who answers `count` requests."""
    return Counter([await client.infer(metadata=CTR) for _ in range(count)])


async def healthy_pods(gateway: Gateway, protocol: str = "grpc") -> int:
    return await gateway.envoy.stat(f"cluster.inference/ads/ctr/{protocol}.membership_healthy")


async def wait_for_healthy(gateway: Gateway, count: int) -> None:
    async def are_so_many() -> bool:
        return await healthy_pods(gateway) == count

    await eventually(are_so_many, f"{count} pods are healthy")


async def test_a_spare_gets_nothing_while_all_pods_answer(gateway: Gateway) -> None:
    a, b, spare = [await gateway.upstream(name) for name in ("a", "b", "spare")]
    client = await gateway.start(a_model_access(), with_spare(backend_of("ctr", a, b), [spare], 2))
    await wait_for_healthy(gateway, 3)
    answers = await ask(client, 100)
    assert answers["a"] + answers["b"] == 100
    for _ in range(20):
        assert (await client.rest("POST", "/v2/models/ctr/infer", headers=dict(CTR)))[0] == 200
    assert spare.inferences == 0
    # It is asked whether it is ready, as the others are, on the port of REST.
    assert spare.calls["ready"] > 0


async def test_the_spare_answers_for_a_pod_that_is_gone_and_only_until_it_is_back(gateway: Gateway) -> None:
    own, spare = await gateway.upstream("own"), await gateway.upstream("spare")
    access = a_model_access(routes=[a_route(timeout="500ms")])
    client = await gateway.start(access, with_spare(backend_of("ctr", own), [spare], 1))
    await wait_for_healthy(gateway, 2)
    load = Load(client, CTR, pause_s=0.01)
    async with load.running(workers=2):
        await load.answered(50)
        assert load.answers.keys() == {"own"}
        # Like a node without power: connections stay, and nothing comes back.
        own.open.clear()
        await eventually(lambda: _is_answered_by(load, "spare"), "the spare answers", timeout_s=DETECTED_S)

        # A retry may reach the spare before the checks of the pod fail.
        await wait_for_healthy(gateway, 1)
        errors = len(load.errors)
        await load.answered(100)
        assert len(load.errors) - errors <= 2  # in flight when the pod was left out
        own.open.set()
        await wait_for_healthy(gateway, 2)

        async def is_spare_left_alone() -> bool:
            before = spare.inferences
            await load.answered(100)
            return spare.inferences <= before + 2

        # The gauge is the main thread's: a worker of a busy machine learns of the pod later.
        await eventually(is_spare_left_alone, "the pod that is back answers alone")
    assert all("DEADLINE_EXCEEDED" in error or "UNAVAILABLE" in error for error in load.errors)


async def _is_answered_by(load: Load, label: str) -> bool:
    return load.answers[label] > 0


async def test_without_a_spare_requests_fail_as_long_as_the_pod_is_gone(gateway: Gateway) -> None:
    own = await gateway.upstream("own")
    client = await gateway.start(a_model_access(routes=[a_route(timeout="200ms")]), backend_of("ctr", own))
    own.open.clear()
    for _ in range(5):
        with pytest.raises(grpc.aio.AioRpcError):
            await client.infer(metadata=CTR)
    assert own.calls["ready"] == 0


async def test_of_several_pods_the_spare_gets_the_share_of_the_one_that_is_gone(gateway: Gateway) -> None:
    pods = [await gateway.upstream(name) for name in "abcd"]
    spare = await gateway.upstream("spare")
    client = await gateway.start(a_model_access(), with_spare(backend_of("ctr", *pods), [spare], 4))
    await wait_for_healthy(gateway, 5)
    await pods[0].stop()
    await wait_for_healthy(gateway, 4)
    answers = await ask(client, 400)
    assert answers["a"] == 0
    # A quarter, drawn at random: 100 of 400, with a deviation of 8.7.
    assert 60 <= answers["spare"] <= 140


@pytest.mark.parametrize(("decided", "fewest", "most"), [(2, 60, 140), (1, 0, 0), (1.25, 12, 68)])
async def test_a_pod_that_is_decided_and_not_there_has_a_share_as_well(
    gateway: Gateway, decided: float, fewest: int, most: int
) -> None:
    own, spare = await gateway.upstream("own"), await gateway.upstream("spare")
    client = await gateway.start(a_model_access(), with_spare(backend_of("ctr", own), [spare], decided))
    await wait_for_healthy(gateway, 2)
    assert fewest <= (await ask(client, 200))["spare"] <= most


async def test_two_spares_replace_two_of_three_pods(gateway: Gateway) -> None:
    own = await gateway.upstream("own")
    spares = [await gateway.upstream(name) for name in ("spare-0", "spare-1")]
    client = await gateway.start(a_model_access(), with_spare(backend_of("ctr", own), spares, 3))
    await wait_for_healthy(gateway, 3)
    # A third, drawn at random: 100 of 300, with a deviation of 8.2; with priorities it would be half of them.
    assert 65 <= (await ask(client, 300))["own"] <= 135


async def test_a_spare_answers_alone_while_no_pod_is_ready_and_before_the_fallback(gateway: Gateway) -> None:
    spare, small = await gateway.upstream("spare"), await gateway.upstream("small")
    access = a_model_access(routes=[a_route(fallback={"inference": "small"})])
    client = await gateway.start(
        access, with_spare(backend_of("ctr"), [spare], 1), backend_of("small", small)
    )
    assert await ask(client, 20) == Counter({"spare": 20})

    own = await gateway.upstream("own")
    parts: tuple[ModelAccess | Backend, ...] = (
        access,
        with_spare(backend_of("ctr", own), [spare], 1),
        backend_of("small", small),
    )
    await gateway.control_plane.push(*parts)
    await _answers_alone(client, "own")
    await own.stop()

    async def spare_answers() -> bool:
        try:
            return await client.infer(metadata=CTR) == "spare"
        except grpc.aio.AioRpcError:
            return False

    await eventually(spare_answers, "the spare answers")
    assert small.inferences == 0


async def test_an_unhealthy_spare_leaves_its_share_to_healthy_pods_and_not_to_the_fallback(
    gateway: Gateway,
) -> None:
    own, spare, small = [await gateway.upstream(name) for name in ("own", "spare", "small")]
    access = a_model_access(routes=[a_route(fallback={"inference": "small"})])
    client = await gateway.start(
        access, with_spare(backend_of("ctr", own), [spare], 2), backend_of("small", small)
    )
    # A half, drawn at random: 100 of 200, with a deviation of 7.1.
    answers = await ask(client, 200)
    assert answers["own"] + answers["spare"] == 200
    assert 60 <= answers["spare"] <= 140
    spare.ready.clear()
    await _answers_alone(client, "own")
    # Only without any of them it answers.
    own.ready.clear()
    await _answers_alone(client, "small")


async def test_without_own_pods_a_spare_gets_what_one_replica_serves_and_the_fallback_the_rest(
    gateway: Gateway,
) -> None:
    spare, small = await gateway.upstream("spare"), await gateway.upstream("small")
    access = a_model_access(routes=[a_route(fallback={"inference": "small"})])
    client = await gateway.start(
        access, with_spare(backend_of("ctr"), [spare], 4), backend_of("small", small)
    )
    # A quarter, drawn at random: 100 of 400, with a deviation of 8.7.
    assert 60 <= (await ask(client, 400))["spare"] <= 140
    spare.ready.clear()
    await _answers_alone(client, "small")


async def test_pods_whose_checks_all_fail_still_get_requests_and_never_while_another_is_healthy(
    gateway: Gateway,
) -> None:
    a, b, spare, small = [await gateway.upstream(name) for name in ("a", "b", "spare", "small")]
    ctr = with_spare(backend_of("ctr", a, b), [spare], 2)
    client = await gateway.start(a_model_access(), ctr)
    await wait_for_healthy(gateway, 3)
    for pod in (a, b, spare):
        pod.ready.clear()
    await wait_for_healthy(gateway, 0)
    # Too slow for the checks, as pods without processor time are.
    assert (await ask(client, 30)).total() == 30

    # As soon as one passes, it is used alone: the spare for lost pods, a pod without a spare.
    for healthy in (spare, b):
        healthy.ready.set()
        await wait_for_healthy(gateway, 1)
        await _answers_alone(client, healthy.label)
        healthy.ready.clear()
        await wait_for_healthy(gateway, 0)

    # So is the fallback.
    access = a_model_access(routes=[a_route(fallback={"inference": "small"})])
    await gateway.control_plane.push(access, ctr, backend_of("small", small))
    await _answers_alone(client, "small")


async def _answers_alone(client: Client, label: str) -> None:
    """Workers learn later of a check than the main thread, whose gauge it is."""

    async def answers_alone() -> bool:
        # So many that chance does not leave out pods that get a share.
        return await ask(client, 40) == Counter({label: 40})

    await eventually(answers_alone, f"{label} answers all")

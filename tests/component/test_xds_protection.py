"""What protects a model, in a real Envoy: limits of one access alone, ejection, fallbacks, mirrors, deadlines; each with its control."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import grpc.aio
import pytest

from builders.model_access import a_model_access, a_route
from builders.waiting import eventually
from fixtures.envoy import Client, Gateway, Upstream, backend_of, start_failing_and_sound
from tidegate.api.model_access import ModelAccess
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint

CTR = (("x-tidegate-access", "ads/ctr"),)
OTHER = (("x-tidegate-access", "ads/other"),)
INFER = "/v2/models/ctr/infer"
# Held back by the model until the test lets go: no timeout of a busy machine may answer first.
PATIENT = {"timeout": "60s"}


def rest_header(metadata: tuple[tuple[str, str], ...] = CTR) -> dict[str, str]:
    return dict(metadata)


async def outcome(client: Client, metadata: tuple[tuple[str, str], ...] = CTR) -> str:
    """Who answered, or the name of the status."""
    try:
        return await client.infer(metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code().name


async def outcomes(client: Client, count: int, metadata: tuple[tuple[str, str], ...] = CTR) -> Counter[str]:
    """What became of `count` requests, one after the other."""
    return Counter([await outcome(client, metadata) for _ in range(count)])


# The rate


def limited(requests: int, per: str) -> ModelAccess:
    return a_model_access(protection={"rateLimit": {"requests": requests, "per": per}})


async def test_more_than_the_rate_is_refused_with_its_type_and_when_to_come_again(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    client = await gateway.start(limited(5, "1m"), a_model_access("other"), backend_of("ctr", v1))

    assert await outcomes(client, 8) == Counter({"v1": 5, "RESOURCE_EXHAUSTED": 3})
    # One bucket for both protocols.
    status, _, headers = await client.rest("POST", INFER, headers=rest_header())
    assert (status, headers["Retry-After"]) == (429, "60")
    # What a client claims about itself changes nothing, and another access has no limit.
    escape = (*CTR, ("x-envoy-internal", "true"), ("x-envoy-ratelimited", "false"))
    assert await outcome(client, escape) == "RESOURCE_EXHAUSTED"
    assert await outcomes(client, 8, OTHER) == Counter({"v1": 8})
    assert v1.inferences == 13


async def test_the_rate_comes_back_with_time(gateway: Gateway) -> None:
    client = await gateway.start(limited(1, "500ms"), backend_of("ctr", await gateway.upstream("v1")))

    async def says(expected: str) -> bool:
        return await outcome(client) == expected

    for expected in ("v1", "RESOURCE_EXHAUSTED", "v1"):
        await eventually(lambda expected=expected: says(expected), f"the answer is {expected}")  # type: ignore[misc]


# Requests in flight


async def in_flight(client: Client, count: int, metadata: tuple[tuple[str, str], ...] = CTR) -> Counter[str]:
    """What becomes of `count` requests at once."""
    return Counter(await asyncio.gather(*(outcome(client, metadata) for _ in range(count))))


def capped(name: str = "ctr", **protection: Any) -> ModelAccess:
    fields = {"protection": protection} if protection else {}
    return a_model_access(name, routes=[a_route(**PATIENT)], **fields)


async def holding(gateway: Gateway, *accesses: ModelAccess) -> tuple[Client, Upstream]:
    """A gateway in front of a model that keeps each request until the test lets go."""
    v1 = await gateway.upstream("v1")
    client = await gateway.start(*accesses, backend_of("ctr", v1))
    # The connection is there, so that nothing waits for it.
    assert [await outcome(client, CTR), await outcome(client, OTHER)] == ["v1", "v1"]
    v1.open.clear()
    return client, v1


async def let_go(
    gateway: Gateway, model: Upstream, *, refused: int, taken: int, protocol: str = "grpc"
) -> None:
    """Lets the model answer once as many requests have been refused and taken."""
    overflow, before = f"cluster.inference/ads/ctr/{protocol}.upstream_rq_active_overflow", 2

    async def all_are_there() -> bool:
        return model.inferences - before == taken and await gateway.envoy.stat(overflow) == refused

    await eventually(all_are_there, f"{refused} are refused and {taken} taken")
    model.open.set()


async def test_more_in_flight_than_allowed_is_refused_and_costs_no_other_access(gateway: Gateway) -> None:
    client, v1 = await holding(gateway, capped(maxConcurrent=2), capped("other"))
    mine, others, _ = await asyncio.gather(
        in_flight(client, 6), in_flight(client, 6, OTHER), let_go(gateway, v1, refused=4, taken=8)
    )
    assert mine == Counter({"v1": 2, "RESOURCE_EXHAUSTED": 4})
    assert others == Counter({"v1": 6})


async def test_two_accesses_to_one_model_have_a_limit_each(gateway: Gateway) -> None:
    client, v1 = await holding(gateway, capped(maxConcurrent=2), capped("other", maxConcurrent=3))
    mine, others, _ = await asyncio.gather(
        in_flight(client, 6), in_flight(client, 6, OTHER), let_go(gateway, v1, refused=7, taken=5)
    )
    assert (mine["v1"], others["v1"]) == (2, 3)


async def test_rest_is_told_503_and_when_to_come_again(gateway: Gateway) -> None:
    client, v1 = await holding(gateway, capped(maxConcurrent=1), capped("other"))
    calls = [client.rest("POST", INFER, headers=rest_header()) for _ in range(4)]
    *answers, _ = await asyncio.gather(*calls, let_go(gateway, v1, refused=3, taken=1, protocol="http"))
    said = [answer for answer in answers if answer is not None]
    assert sorted(status for status, _, _ in said) == [200, 503, 503, 503]
    assert {headers.get("Retry-After") for status, _, headers in said if status == 503} == {"1"}


# Requests that wait for a connection


@contextlib.contextmanager
def a_pod_that_takes_no_connection() -> Iterator[Backend]:
    """Listens, and never accepts: its queue is full, so that connecting takes until the gateway gives up."""
    with contextlib.ExitStack() as stack:
        pod = stack.enter_context(socket.create_server(("127.0.0.2", 0), backlog=0))
        address = pod.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        key = BackendKey(BackendKind.INFERENCE, "ads", "ctr")
        yield Backend(key, "ctr", (Endpoint("127.0.0.2", grpc_port=address[1], http_port=address[1]),))


async def test_more_waiting_for_a_connection_than_allowed_are_refused_at_once(gateway: Gateway) -> None:
    with a_pod_that_takes_no_connection() as backend:
        client = await gateway.start(capped(maxPending=2), backend)
        refused = 0

        async def two_wait() -> bool:
            nonlocal refused
            seen = await in_flight(client, 10)
            refused += seen["RESOURCE_EXHAUSTED"]
            # Two wait and then fail; if the client is slow, others may take their places.
            return seen == Counter({"RESOURCE_EXHAUSTED": 8, "UNAVAILABLE": 2})

        await eventually(two_wait, "of ten at once, two wait for a connection")
    overflow = "cluster.inference/ads/ctr/grpc.upstream_rq_pending_overflow"
    assert await gateway.envoy.stat(overflow) == refused


# Ejection and fallback


async def given_up(gateway: Gateway, client: Client, failing: Upstream, after: int) -> None:
    """Asks until `failing` has failed so often, and waits until Envoy's main thread has left it out for that.

    What is asked between a pod's last failure and that moment may reach it still.
    """
    for _ in range(60):
        if failing.inferences == after:
            break
        await outcome(client)
    assert failing.inferences == after

    async def left_out() -> bool:
        return await gateway.envoy.sum_of_stats("outlier_detection.ejections_active") == 1

    await eventually(left_out, "the pod is left out")


async def test_a_pod_that_fails_in_a_row_is_left_out(gateway: Gateway) -> None:
    failing, sound = await start_failing_and_sound(gateway)
    outlier = {"consecutiveFailures": 3, "ejectFor": "1h"}
    client = await gateway.start(
        a_model_access(protection={"outlier": outlier}),
        a_model_access("other"),
        backend_of("ctr", failing, sound),
    )
    await given_up(gateway, client, failing, after=3)
    assert await outcomes(client, 60) == Counter({"sound": 60})
    assert failing.inferences == 3
    # What one access thinks of a pod is not what another one gets.
    assert (await outcomes(client, 60, OTHER))["UNAVAILABLE"] > 3


async def test_an_ejected_pod_comes_back(gateway: Gateway) -> None:
    failing, sound = await start_failing_and_sound(gateway)
    outlier = {"consecutiveFailures": 1, "ejectFor": "1s"}
    client = await gateway.start(
        a_model_access(protection={"outlier": outlier}), backend_of("ctr", failing, sound)
    )
    assert (await outcomes(client, 20))["UNAVAILABLE"] >= 1
    failing.fail_with = None

    async def back() -> bool:
        return (await outcomes(client, 20))["failing"] > 0

    await eventually(back, "the pod answers again")


def with_fallback(**protection: Any) -> ModelAccess:
    return a_model_access(routes=[a_route(fallback={"inference": "small"})], protection=protection)


async def test_the_fallback_answers_while_every_pod_is_ejected(gateway: Gateway) -> None:
    failing, sound = await start_failing_and_sound(gateway)
    client = await gateway.start(
        with_fallback(outlier={"consecutiveFailures": 2, "ejectFor": "1h"}),
        backend_of("ctr", failing),
        backend_of("small", sound),
    )
    await given_up(gateway, client, failing, after=2)
    assert await outcomes(client, 20) == Counter({"sound": 20})


async def test_one_sound_pod_is_enough_to_keep_the_fallback_idle(gateway: Gateway) -> None:
    failing, sound = await start_failing_and_sound(gateway)
    small = await gateway.upstream("small")
    client = await gateway.start(
        with_fallback(outlier={"consecutiveFailures": 1, "ejectFor": "1h"}),
        backend_of("ctr", failing, sound),
        backend_of("small", small),
    )
    await given_up(gateway, client, failing, after=1)
    assert await outcomes(client, 60) == Counter({"sound": 60})
    assert small.inferences == 0


async def test_without_a_fallback_the_only_pod_is_never_left_out(gateway: Gateway) -> None:
    failing = await gateway.upstream("failing")
    failing.fail_with = grpc.StatusCode.UNAVAILABLE
    client = await gateway.start(
        a_model_access(protection={"outlier": {"consecutiveFailures": 1}}), backend_of("ctr", failing)
    )
    assert await outcomes(client, 10) == Counter({"UNAVAILABLE": 10})
    assert failing.inferences == 10


async def test_the_fallback_takes_the_route_when_no_target_has_a_pod_and_gives_it_back(
    gateway: Gateway,
) -> None:
    ctr, small = await gateway.upstream("ctr"), await gateway.upstream("small")
    awake = (with_fallback(), backend_of("ctr", ctr), backend_of("small", small))
    client = await gateway.start(*awake)
    assert await outcomes(client, 10) == Counter({"ctr": 10})
    await gateway.control_plane.push(with_fallback(), backend_of("ctr"), backend_of("small", small))
    assert await outcomes(client, 10) == Counter({"small": 10})
    await gateway.control_plane.push(*awake)
    assert await outcomes(client, 10) == Counter({"ctr": 10})
    await gateway.control_plane.push(a_model_access(), backend_of("ctr"), backend_of("small", small))
    assert await outcome(client) == "UNAVAILABLE"


# Mirrors


def mirrored(percent: int | None = 100, **fields: Any) -> ModelAccess:
    mirror = [{"inference": "shadow", "percent": percent}] if percent else []
    return a_model_access(routes=[a_route(mirror=mirror, **fields)])


async def counted(upstream: Upstream, count: int) -> None:
    async def enough() -> bool:
        return upstream.inferences >= count

    await eventually(enough, f"{upstream.label} counts {count}")


async def test_a_mirror_gets_copies_and_its_answers_go_nowhere(gateway: Gateway) -> None:
    main, shadow = await gateway.upstream("main"), await gateway.upstream("shadow")
    backends = backend_of("ctr", main), backend_of("shadow", shadow)
    client = await gateway.start(mirrored(), *backends)
    shadow.fail_with = grpc.StatusCode.INTERNAL
    assert await outcomes(client, 30) == Counter({"main": 30})
    await client.rest("POST", INFER, headers=rest_header(), body=b"{}")
    await counted(shadow, 31)

    await gateway.control_plane.push(mirrored(None), *backends)
    assert await outcomes(client, 30) == Counter({"main": 30})
    assert (main.inferences, shadow.inferences) == (61, 31)


async def test_a_mirror_gets_its_percentage(gateway: Gateway) -> None:
    main, shadow = await gateway.upstream("main"), await gateway.upstream("shadow")
    client = await gateway.start(mirrored(20), backend_of("ctr", main), backend_of("shadow", shadow))
    assert await outcomes(client, 500) == Counter({"main": 500})
    await counted(shadow, 50)
    # Six standard deviations around 100.
    assert 46 <= shadow.inferences <= 154


async def test_a_mirror_that_hangs_costs_the_requests_nothing(gateway: Gateway) -> None:
    main, shadow = await gateway.upstream("main"), await gateway.upstream("shadow")
    shadow.delay_s = 60
    client = await gateway.start(mirrored(**PATIENT), backend_of("ctr", main), backend_of("shadow", shadow))
    assert await outcomes(client, 150) == Counter({"main": 150})
    assert await gateway.envoy.stat("cluster.shadow/ads/ctr/shadow/grpc.upstream_rq_active_overflow") > 0
    assert shadow.inferences <= 64


# Deadlines


@contextlib.asynccontextmanager
async def a_pod_that_hangs() -> AsyncIterator[Backend]:
    """Takes requests and never says a word, as no gRPC server would: those keep the client's deadline themselves."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.2", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        key = BackendKey(BackendKind.INFERENCE, "ads", "ctr")
        yield Backend(key, "ctr", (Endpoint("127.0.0.2", grpc_port=port),))


@pytest.mark.parametrize("deadline", [True, False])
async def test_the_gateway_ends_a_request_at_the_deadline_of_its_client(
    gateway: Gateway, deadline: bool
) -> None:
    """The client here only says its deadline and does not keep it."""
    headers = {"content-type": "application/grpc", "te": "trailers", "grpc-timeout": "100m", **rest_header()}
    async with a_pod_that_hangs() as backend:
        route = a_route(timeout="2s")
        client = await gateway.start(
            a_model_access(routes=[route], protection={"deadline": deadline}), backend
        )
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"http://{client.address}/inference.GRPCInferenceService/ModelInfer",
                headers=headers,
                data=bytes(5),
            ) as answer,
        ):
            assert answer.headers.get("grpc-status") == "4"
    ended = await gateway.envoy.stat("http.gateway.downstream_rq_max_duration_reached")
    assert ended == int(deadline)


async def test_a_deadline_later_than_the_timeout_is_capped(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    v1.delay_s = 20
    client = await gateway.start(
        a_model_access(routes=[a_route(timeout="100ms")], protection={"deadline": True}),
        backend_of("ctr", v1),
    )
    # The client of the tests sets 30 s.
    assert await outcome(client) == "DEADLINE_EXCEEDED"

"""What a request meets at the gateway: our snapshots run by a real Envoy, before real gRPC and REST servers."""

from __future__ import annotations

import io
from collections import Counter

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from builders.model_access import a_model_access, a_route
from fixtures.envoy import Client, Gateway, Load, backend_of, start_failing_and_sound

CTR = (("x-tidegate-access", "ads/ctr"),)
CTR_HEADER = {"x-tidegate-access": "ads/ctr"}
INFER = "/v2/models/ctr/infer"


async def refusal(client: Client, metadata: tuple[tuple[str, str], ...] = CTR) -> tuple[grpc.StatusCode, str]:
    """The status and words of an inference that must not succeed."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.infer(metadata=metadata)
    return refused.value.code(), refused.value.details() or ""


async def shares(client: Client, count: int) -> Counter[str]:
    """Who answered `count` requests."""
    return Counter([await client.infer(metadata=CTR) for _ in range(count)])


# Addressing


async def test_grpc_and_rest_reach_the_model_by_header_and_by_host(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    client = await gateway.start(a_model_access(hosts=["ctr.example.com"]), backend_of("ctr", v1))

    assert await client.infer(metadata=CTR) == "v1"
    for headers in (
        CTR_HEADER,
        {"host": "ctr.ads.tidegate"},
        {"host": "ctr.ads.tidegate:8080"},
        {"host": "CTR.example.com"},
    ):
        status, body, _ = await client.rest("POST", INFER, headers=headers, body=b"{}")
        assert (status, '"v1"' in body) == (200, True), headers
        assert not [name for name in v1.headers if name.lower().startswith("x-tidegate-t")]
    assert v1.calls == Counter({"ModelInfer": 1, "infer": 4, "any": 4})


async def test_feature_computes_have_names_of_their_own(gateway: Gateway) -> None:
    model, features = await gateway.upstream("model"), await gateway.upstream("features")
    client = await gateway.start(
        a_model_access(), backend_of("ctr", model), backend_of("ctr", features, features=True)
    )
    assert await client.infer(metadata=CTR) == "model"
    assert await client.infer(metadata=(("x-tidegate-features", "ads/ctr"),)) == "features"
    _, body, _ = await client.rest("POST", INFER, headers={"host": "ctr.ads.features.tidegate"})
    assert '"features"' in body
    assert features.headers.get("x-tidegate-target") is None


NOBODYS = (
    {"x-tidegate-access": "ads/nobody"},
    {"x-tidegate-access": "ads/nobody", "host": "ctr.ads.tidegate"},
    {"x-tidegate-features": "ads/ctr"},
    {"x-tidegate-target": "ads/ctr"},
    {"x-tidegate-target": "access/ads/ctr"},
    {"x-tidegate-access": "hosts", "host": "ctr.ads.tidegate"},
    {"x-tidegate-features": "hosts", "host": "ctr.ads.tidegate"},
    {"host": "nobody.ads.tidegate"},
    {},
)


async def test_names_that_nobody_has_are_not_found(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    client = await gateway.start(a_model_access(), backend_of("ctr", v1))

    for headers in NOBODYS:
        status, body, answered = await client.rest("POST", INFER, headers=headers)
        assert (status, "x-tidegate-access: <namespace>/<name>" in body) == (404, True), headers
        assert "grpc-status" not in answered
    code, details = await refusal(client, (("x-tidegate-access", "ads/nobody"),))
    assert (code, "x-tidegate-access" in details) == (grpc.StatusCode.NOT_FOUND, True)
    assert v1.calls.total() == 0


async def test_of_two_accesses_with_one_host_the_older_has_it(gateway: Gateway) -> None:
    old, new = await gateway.upstream("old"), await gateway.upstream("new")
    client = await gateway.start(
        a_model_access(
            "newer",
            hosts=["shared.example.com", "own.example.com"],
            routes=[a_route("default", "new")],
            metadata={"creationTimestamp": "2026-02-01T00:00:00Z"},
        ),
        a_model_access("older", hosts=["shared.example.com"], routes=[a_route("default", "old")]),
        backend_of("old", old),
        backend_of("new", new),
    )
    for host, owner in (
        ("shared.example.com", "old"),
        ("own.example.com", "new"),
        ("newer.ads.tidegate", "new"),
    ):
        _, body, _ = await client.rest("POST", INFER, headers={"host": host})
        assert f'"{owner}"' in body, host
    # The header wins over the host.
    named = {"x-tidegate-access": "ads/older", "host": "own.example.com"}
    _, body, _ = await client.rest("POST", INFER, headers=named)
    assert '"old"' in body


# What passes


async def test_inference_health_and_metadata_pass(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    client = await gateway.start(a_model_access(), backend_of("ctr", v1))

    assert (await client.stub().ServerLive(service_pb2.ServerLiveRequest(), metadata=CTR)).live
    assert (
        await client.stub().ModelMetadata(service_pb2.ModelMetadataRequest(name="ctr"), metadata=CTR)
    ).name == "ctr"
    for method, path in (
        ("GET", "/v2"),
        ("GET", "/v2/health/live"),
        ("GET", "/v2/health/ready"),
        ("GET", "/v2/models/ctr"),
        ("GET", "/v2/models/ctr/ready"),
        ("GET", "/v2/models/ctr.v2_a/versions/3/ready?x=1"),
        ("POST", "/v2/models/ctr/versions/3/infer"),
    ):
        status, body, _ = await client.rest(method, path, headers=CTR_HEADER)
        assert status == 200, (path, body)


async def test_model_control_and_the_like_never_pass(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    client = await gateway.start(a_model_access(), backend_of("ctr", v1))

    for call, request in (
        ("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest()),
        ("ModelStatistics", service_pb2.ModelStatisticsRequest()),
        ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest()),
        ("TraceSetting", service_pb2.TraceSettingRequest()),
        ("LogSettings", service_pb2.LogSettingsRequest()),
        ("ModelConfig", service_pb2.ModelConfigRequest()),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await getattr(client.stub(), call)(request, metadata=CTR)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED, call
        assert "ModelInfer" in (refused.value.details() or "")
    for method, path in (
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/ctr/unload"),
        ("GET", "/v2/models/stats"),
        ("GET", "/v2/models/ctr/stats"),
        ("GET", "/v2/models/ctr/config"),
        ("GET", "/v2/models/%73tats"),
        ("POST", "/v2/models/ctr/../../repository/index"),
        ("POST", "//v2//repository/index"),
        ("POST", "/v2/models/ctr%2Finfer"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/cudasharedmemory/status"),
        ("GET", "/v2/trace/setting"),
        ("POST", "/v2/logging"),
        ("POST", "/v2/models/ctr/generate"),
        ("GET", INFER),
        ("DELETE", "/v2/models/ctr"),
        ("GET", "/metrics"),
        ("GET", "/"),
    ):
        status, body, _ = await client.rest(method, path, headers=CTR_HEADER)
        assert status in {400, 404}, (method, path, body)
    assert v1.calls.total() == 0


async def test_clients_cannot_steer_the_proxy(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    v1.delay_s = 0.05
    client = await gateway.start(a_model_access(), backend_of("ctr", v1))

    hostile = {
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-upstream-rq-per-try-timeout-ms": "1",
        "x-envoy-retry-on": "5xx,gateway-error",
        "x-envoy-max-retries": "9",
        "x-envoy-original-path": "/v2/repository/index",
        "x-envoy-internal": "true",
    }
    status, _, headers = await client.rest("POST", INFER, headers={**CTR_HEADER, **hostile})
    assert status == 200
    assert not [name for name in (*headers, *v1.headers) if name.lower().startswith("x-envoy")]
    assert headers["Server"] == "tidegate"

    v1.delay_s, v1.fail_with = 0.0, grpc.StatusCode.UNAVAILABLE
    before = v1.calls["ModelInfer"]
    await refusal(client, (*CTR, ("x-envoy-retry-grpc-on", "unavailable"), ("x-envoy-max-retries", "9")))
    assert v1.calls["ModelInfer"] - before == 1


async def test_a_message_of_64_mebibytes_passes(gateway: Gateway) -> None:
    client = await gateway.start(
        a_model_access(routes=[a_route(timeout="30s")]), backend_of("ctr", await gateway.upstream("v1"))
    )
    body = bytes(64 << 20)
    assert await client.infer(metadata=CTR, body=body) == "v1"
    status, answer, _ = await client.rest("POST", INFER, headers=CTR_HEADER, body=io.BytesIO(body))
    assert (status, str(len(body)) in answer) == (200, True)


# Routes


async def test_headers_choose_the_route_in_order_each_compared_as_it_says(gateway: Gateway) -> None:
    tests = {"vip": {"exact": "vip"}, "german": {"prefix": "de-"}, "numbered": {"regex": "(de|fr)-[0-9]+"}}
    routes = [
        a_route(label, label, match={"headers": [{"name": "x-segment", **test}]})
        for label, test in tests.items()
    ]
    backends = [backend_of(label, await gateway.upstream(label)) for label in (*tests, "rest")]
    client = await gateway.start(a_model_access(routes=[*routes, a_route("default", "rest")]), *backends)
    expected = {
        "vip": "vip",
        **dict.fromkeys(("vip2", "VIP", "de", "xde-", "DE-x", "fr-", "xfr-1", "fr-1x", "es-1"), "rest"),
        **dict.fromkeys(("de-", "de-berlin", "de-1"), "german"),
        "fr-22": "numbered",
    }
    answers = {value: await client.infer(metadata=(*CTR, ("x-segment", value))) for value in expected}
    assert answers == expected
    assert await client.infer(metadata=CTR) == "rest"

    # A request that no route takes is not found.
    await gateway.control_plane.push(a_model_access(routes=routes), *backends)
    code, details = await refusal(client)
    assert code is grpc.StatusCode.NOT_FOUND
    assert "ModelAccess ads/ctr: no route" in details


async def test_weights_are_kept_within_chance(gateway: Gateway) -> None:
    stable, canary, idle = [await gateway.upstream(label) for label in ("stable", "canary", "idle")]
    targets = [
        {"inference": "stable", "weight": 80},
        {"inference": "canary", "weight": 20},
        {"inference": "idle", "weight": 0},
    ]
    client = await gateway.start(
        a_model_access(routes=[a_route(targets=targets)]),
        backend_of("stable", stable),
        backend_of("canary", canary),
        backend_of("idle", idle),
    )
    await shares(client, 1500)

    expected = {stable: 1200, canary: 300}
    chi_square = sum((up.inferences - count) ** 2 / count for up, count in expected.items())
    # One degree of freedom: a true 80/20 split exceeds this once in 10,000 runs.
    assert chi_square < 15.14
    assert idle.inferences == 0


async def test_the_share_of_a_sleeping_target_goes_to_the_others(gateway: Gateway) -> None:
    client = await gateway.start(
        a_model_access(routes=[a_route("default", "awake", "asleep", "missing")]),
        backend_of("awake", await gateway.upstream("awake")),
        backend_of("asleep"),
    )
    assert await shares(client, 50) == Counter({"awake": 50})


async def test_without_any_endpoint_the_answer_is_unavailable_and_says_whose(gateway: Gateway) -> None:
    other = backend_of("other", await gateway.upstream("other"))
    client = await gateway.start(a_model_access(), other, backend_of("ctr"))
    for fleet in ((backend_of("ctr"), other), (other,)):  # asleep, missing
        await gateway.control_plane.push(a_model_access(), *fleet)
        code, details = await refusal(client)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "ModelAccess ads/ctr" in details
        status, body, _ = await client.rest("POST", INFER, headers=CTR_HEADER)
        assert (status, "ModelAccess ads/ctr" in body) == (503, True)


async def test_a_request_ends_at_the_timeout_of_its_route(gateway: Gateway) -> None:
    v1 = await gateway.upstream("v1")
    v1.delay_s = 5
    client = await gateway.start(a_model_access(routes=[a_route(timeout="80ms")]), backend_of("ctr", v1))
    code, _ = await refusal(client)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    status, _, _ = await client.rest("POST", INFER, headers=CTR_HEADER)
    assert status == 504


async def test_a_retry_goes_to_another_pod(gateway: Gateway) -> None:
    failing, sound = await start_failing_and_sound(gateway)
    client = await gateway.start(
        a_model_access(routes=[a_route(retry={"attempts": 1})]), backend_of("ctr", failing, sound)
    )
    assert await shares(client, 30) == Counter({"sound": 30})
    assert failing.inferences > 0


async def test_without_retry_a_failed_answer_is_the_answer(gateway: Gateway) -> None:
    failing, sound = await start_failing_and_sound(gateway)
    client = await gateway.start(a_model_access(), backend_of("ctr", failing, sound))
    load = Load(client, CTR)
    async with load.running(workers=1):
        await load.answered(30)
    assert load.errors
    assert failing.inferences == len(load.errors)


async def test_a_pod_that_is_gone_costs_no_request(gateway: Gateway) -> None:
    gone, there = await gateway.upstream("gone"), await gateway.upstream("there")
    client = await gateway.start(a_model_access(), backend_of("ctr", gone, there))
    await gone.stop()

    load = Load(client, CTR)
    async with load.running():
        await load.answered(200)
    assert load.errors == []
    assert set(load.answers) == {"there"}


async def test_an_expression_that_envoy_would_not_take_holds_up_nobody(gateway: Gateway) -> None:
    match = {"headers": [{"name": "x-place", "regex": "[a-z]{200}"}]}
    client = await gateway.start(
        a_model_access(routes=[a_route("some", match=match), a_route("rest")]),
        backend_of("ctr", await gateway.upstream("v1")),
    )
    assert await client.infer(metadata=(*CTR, ("x-place", "a" * 200))) == "v1"
    assert await gateway.envoy.stat("http.gateway.scoped_rds.gateway.update_rejected") == 0

"""Features of near-line messages: what is asked of a FeatureCompute, what the model gets, and who is to blame for a failure."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from numpy.typing import NDArray

from tidegate_dataplane.agent.nearline.failure_policy import FaultOrigin, Redeliver, judge_failure
from tidegate_dataplane.agent.nearline.featured_model import FeaturedModel
from tidegate_dataplane.agent.nearline.features import FeatureClient
from tidegate_dataplane.agent.nearline.message import InferenceTensor, MalformedError
from tidegate_dataplane.agent.nearline.model import NoAnswerError
from tidegate_dataplane.contract import NOT_CURRENT, ModelCall, StreamFeatures, TensorSpec
from tidegate_dataplane.pipeline.wire import LENGTH_HEADER

USER = TensorSpec(name="user_id", dtype="INT64", shape=(-1, 1))
CITY = TensorSpec(name="city", dtype="BYTES", shape=(-1, 1))
AGE = TensorSpec(name="age", dtype="FP32", shape=(-1, 2))
CALL = ModelCall(
    title="FeatureCompute users",
    headers={"x-tidegate-features": "ads/users"},
    model="users",
    inputs=(USER, CITY),
    outputs=(AGE,),
    timeout_us=2_000_000,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def tensor(name: str, datatype: str, values: Any, dtype: Any) -> InferenceTensor:
    array: NDArray[Any] = np.array(values, dtype=dtype)
    return InferenceTensor(name, datatype, array)


MESSAGE = (
    tensor("user_id", "INT64", [[3], [9]], np.int64),
    tensor("city", "BYTES", [[b"Oslo"], [b""]], np.object_),
    tensor("price", "FP32", [[0.5], [2.5]], np.float32),
)


def answer_ages(*, values: Any = ((1, 2), (3, 4)), name: str = "age") -> web.Response:
    array = np.array(values, dtype="<f4")
    entry = {
        "name": name,
        "datatype": "FP32",
        "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes},
    }
    document = json.dumps({"outputs": [entry]}).encode()
    return web.Response(body=document + array.tobytes(), headers={LENGTH_HEADER: str(len(document))})


class Gateway:
    """A gateway that records requests and answers as it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.response: Callable[[], web.Response] = answer_ages
        self.is_ready = True

    async def infer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path, dict(request.headers), await request.read()))
        return self.response()

    async def ready(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.path, dict(request.headers), b""))
        return web.Response(status=200 if self.is_ready else 503)


class Model:
    """A model that takes some inputs, and changes with its version."""

    def __init__(self, *inputs: str) -> None:
        self.inputs = frozenset(inputs)

    async def read_inputs(self) -> frozenset[str]:
        return self.inputs


@asynccontextmanager
async def asking(gateway: Gateway, *taken: str, clock: Clock | None = None) -> AsyncGenerator[FeatureClient]:
    app = web.Application()
    app.router.add_post("/v2/models/users/infer", gateway.infer)
    app.router.add_get("/v2/models/users/ready", gateway.ready)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = make_client(runner.addresses[0][1], Model("age", "price", *taken), clock)
    try:
        yield client
    finally:
        await client.close_client()
        await runner.cleanup()


class Clock:
    """A clock that stands still until it is advanced."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def client_order(client: FeatureClient) -> StreamFeatures:
    """The order of a client, for another one of the same gateway."""
    return StreamFeatures(gateway=client.gateway, call=CALL, revision="abc")


def make_client(port: int, model: Model, clock: Clock | None = None) -> FeatureClient:
    features = StreamFeatures(gateway=f"127.0.0.1:{port}", call=CALL, revision="abc")
    return FeatureClient(features, model.read_inputs, *(() if clock is None else (clock,)))


async def test_the_model_gets_features_and_the_tensors_that_are_for_it() -> None:
    gateway = Gateway()
    async with asking(gateway, "city") as client:
        inputs = await client.compute_inputs(MESSAGE)

    assert [item.name for item in inputs.tensors] == ["city", "price", "age"]
    assert inputs.tensors[2].array.tolist() == [[1, 2], [3, 4]]
    assert inputs.tensors[2].datatype == "FP32"
    assert inputs.marks == ()
    ((path, headers, body),) = gateway.requests
    assert path == "/v2/models/users/infer"
    assert headers["x-tidegate-features"] == "ads/users"
    length = int(headers[LENGTH_HEADER])
    document = json.loads(body[:length])
    assert [item["name"] for item in document["inputs"]] == ["user_id", "city"]
    assert document["outputs"] == [{"name": "age", "parameters": {"binary_data": True}}]
    assert body[length : length + 16] == np.array([3, 9], dtype="<i8").tobytes()
    assert body[length + 16 :] == b"\x04\0\0\0Oslo\0\0\0\0"


async def test_a_message_may_have_the_time_of_its_features() -> None:
    gateway = Gateway()
    async with asking(gateway) as client:
        await client.compute_inputs((*MESSAGE, tensor("as_of", "INT64", [[7], [8]], np.int64)))

    ((_, headers, body),) = gateway.requests
    document = json.loads(body[: int(headers[LENGTH_HEADER])])
    assert [item["name"] for item in document["inputs"]] == ["user_id", "city", "as_of"]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (MESSAGE[1:], "it has no input user_id, which FeatureCompute users needs"),
        (
            (*MESSAGE, tensor("age", "FP32", [[1, 2]], np.float32)),
            "its input age is a feature of FeatureCompute users: leave it out",
        ),
        (
            (tensor("user_id", "FP32", [[3]], np.float32), *MESSAGE[1:]),
            "its input user_id is FP32, and FeatureCompute users needs INT64",
        ),
    ],
)
async def test_a_message_that_does_not_fit_is_refused_without_a_request(
    tensors: tuple[InferenceTensor, ...], message: str
) -> None:
    gateway = Gateway()
    async with asking(gateway) as client:
        with pytest.raises(MalformedError, match=message):
            await client.compute_inputs(tensors)
    assert gateway.requests == []


async def test_a_request_that_is_rejected_is_the_fault_of_the_message() -> None:
    gateway = Gateway()
    gateway.response = lambda: web.json_response({"error": "the inputs differ in length"}, status=400)
    async with asking(gateway) as client:
        with pytest.raises(
            NoAnswerError, match="FeatureCompute users rejects it: the inputs differ"
        ) as caught:
            await client.compute_inputs(MESSAGE)
        assert caught.value.fault is FaultOrigin.MESSAGE
        assert not client.is_failing


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (
            lambda: web.Response(status=503, text="no healthy upstream"),
            "HTTP status 503: no healthy upstream",
        ),
        (lambda: web.Response(status=404), "HTTP status 404: no text"),
        (lambda: web.Response(status=500, text='{"error": "no memory"}'), "HTTP status 500: no memory"),
        (
            lambda: web.Response(status=200, text="<html>"),
            "the response of FeatureCompute users cannot be read",
        ),
        (lambda: answer_ages(name="height"), "output age is missing"),
        (lambda: answer_ages(values=[[1], [2]]), r"output age is FP32 \[2, 1\], not FP32 \[-1, 2\]"),
    ],
)
async def test_every_other_answer_is_an_absence_until_a_request_is_answered(
    response: Callable[[], web.Response], message: str
) -> None:
    gateway, clock = Gateway(), Clock()
    gateway.response, gateway.is_ready = response, False
    async with asking(gateway, clock=clock) as client:
        assert await client.is_ready()
        assert gateway.requests == []
        with pytest.raises(NoAnswerError, match=message) as caught:
            await client.compute_inputs(MESSAGE)
        assert caught.value.fault is FaultOrigin.FEATURES
        assert client.is_failing
        assert client.problem == ""
        clock.now += 5.0
        assert client.problem == caught.value.message

        assert not await client.is_ready()
        assert client.problem == "FeatureCompute users does not answer: HTTP status 503: no text"
        gateway.is_ready, gateway.response = True, answer_ages
        assert not await client.is_ready()
        clock.now += 1.0
        assert await client.is_ready()
        assert client.is_failing
        await client.compute_inputs(MESSAGE)
        assert not client.is_failing
    assert [path for path, _, _ in gateway.requests[1:3]] == ["/v2/models/users/ready"] * 2
    assert all(headers["x-tidegate-features"] == "ads/users" for _, headers, _ in gateway.requests)


async def test_an_absence_that_is_over_is_not_reported_although_no_further_message_comes() -> None:
    gateway, clock = Gateway(), Clock()
    gateway.response, gateway.is_ready = (lambda: web.Response(status=503, text="gone")), False
    async with asking(gateway, clock=clock) as client:
        with pytest.raises(NoAnswerError, match="gone"):
            await client.compute_inputs(MESSAGE)
        clock.now += 60.0
        assert not await client.is_ready()
        assert client.problem

        gateway.is_ready = True
        clock.now += 60.0
        assert await client.is_ready()
        clock.now += 30.0
        assert client.problem, "a message that failed may come again, and fail"
        clock.now += 30.0
        assert await client.is_ready()
        assert (client.problem, client.is_failing) == ("", True)

        gateway.is_ready = False
        clock.now += 60.0
        assert not await client.is_ready()
        assert client.problem == "", "a new absence is reported after some seconds"
        clock.now += 5.0
        assert client.problem
        with pytest.raises(NoAnswerError, match="gone"):
            await client.compute_inputs(MESSAGE)
        assert client.problem


async def test_requests_that_fail_although_it_is_ready_come_after_longer_pauses() -> None:
    gateway, clock = Gateway(), Clock()
    gateway.response = lambda: web.Response(status=429)
    waits: list[float] = []
    async with asking(gateway, clock=clock) as client:
        for _ in range(9):
            with pytest.raises(NoAnswerError):
                await client.compute_inputs(MESSAGE)
            began = clock.now
            while not await client.is_ready():
                clock.now += 0.1
            waits.append(clock.now - began)
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0], abs=0.11)


async def test_a_version_with_other_inputs_gets_its_features() -> None:
    gateway, model = Gateway(), Model("age", "price")
    asked: list[list[str]] = []

    class Swapped:
        """Refuses what the present version does not take."""

        async def infer_outputs(
            self, request_id: str, inputs: Sequence[InferenceTensor]
        ) -> tuple[str, tuple[InferenceTensor, ...]]:
            asked.append([item.name for item in inputs])
            if frozenset(item.name for item in inputs) != model.inputs:
                raise NoAnswerError(FaultOrigin.MESSAGE, "unexpected inputs")
            return "2", ()

        async def close_connection(self) -> None:
            return

    async with asking(gateway) as client:
        client = FeatureClient(client_order(client), model.read_inputs)
        featured = FeaturedModel(Swapped(), client)
        assert await featured.infer_outputs("a", MESSAGE) == ("2", ())
        model.inputs = frozenset({"age", "price", "city"})
        assert await featured.infer_outputs("b", MESSAGE) == ("2", ())
        with pytest.raises(NoAnswerError, match="unexpected inputs"):
            await featured.infer_outputs("c", (*MESSAGE, tensor("other", "FP32", [[1]], np.float32)))
        await featured.close_connection()
    assert asked == [
        ["price", "age"],
        ["price", "age"],
        ["city", "price", "age"],
        ["city", "price", "other", "age"],
    ]


async def test_a_result_names_the_streams_that_its_features_lack() -> None:
    mark = TensorSpec(name=NOT_CURRENT, dtype="BYTES", shape=(-1, 1))
    call = CALL.model_copy(update={"optional_outputs": (mark,)})
    texts = b"\x06\0\0\0clicks\0\0\0\0"
    ages = np.array([[1, 2], [3, 4]], dtype="<f4").tobytes()
    entries = [
        {"name": spec.name, "datatype": spec.dtype, "shape": shape, "parameters": {"binary_data_size": size}}
        for spec, shape, size in ((AGE, [2, 2], len(ages)), (mark, [2, 1], len(texts)))
    ]
    document = json.dumps({"outputs": entries}).encode()
    gateway = Gateway()
    gateway.response = lambda: web.Response(
        body=document + ages + texts, headers={LENGTH_HEADER: str(len(document))}
    )
    score = tensor("y", "FP32", [[0.5], [0.25]], np.float32)
    asked: list[str] = []

    class Scoring:
        async def infer_outputs(
            self, request_id: str, inputs: Sequence[InferenceTensor]
        ) -> tuple[str, tuple[InferenceTensor, ...]]:
            asked.extend(item.name for item in inputs)
            return "2", (score,)

        async def close_connection(self) -> None:
            return

    async with asking(gateway) as client:
        order = client_order(client).model_copy(update={"call": call, "marked_outputs": ("age",)})
        featured = FeaturedModel(Scoring(), FeatureClient(order, Model("age", "price").read_inputs))
        version, outputs = await featured.infer_outputs("a", MESSAGE)
        gateway.response = answer_ages
        assert await featured.infer_outputs("b", MESSAGE) == ("2", (score,))
        await featured.close_connection()

    assert (version, [item.name for item in outputs]) == ("2", ["y", NOT_CURRENT])
    assert outputs[1].array.tolist() == [[b"clicks"], [b""]]
    assert asked == ["price", "age"] * 2
    _, headers, body = gateway.requests[0]
    requested = json.loads(body[: int(headers[LENGTH_HEADER])])["outputs"]
    assert [item["name"] for item in requested] == ["age", NOT_CURRENT]


async def test_a_result_names_no_streams_if_its_model_takes_no_feature_over_events() -> None:
    mark = TensorSpec(name=NOT_CURRENT, dtype="BYTES", shape=(-1, 1))
    clicks = TensorSpec(name="clicks_1h", dtype="FP32", shape=(-1, 1))
    call = CALL.model_copy(update={"outputs": (AGE, clicks), "optional_outputs": (mark,)})
    gateway = Gateway()
    requested: list[list[str]] = []
    async with asking(gateway) as client:
        order = client_order(client).model_copy(update={"call": call, "marked_outputs": ("clicks_1h",)})
        for model in (Model("age", "price"), Model("age", "clicks_1h")):
            asked = FeatureClient(order, model.read_inputs)
            with suppress(NoAnswerError):
                # The gateway has no feature over events.
                await asked.compute_inputs(MESSAGE)
            await asked.close_client()
            _, headers, body = gateway.requests[-1]
            outputs = json.loads(body[: int(headers[LENGTH_HEADER])])["outputs"]
            requested.append([item["name"] for item in outputs])
    assert requested == [["age"], ["age", "clicks_1h", NOT_CURRENT]]


async def test_a_model_without_a_feature_waits() -> None:
    gateway = Gateway()
    async with asking(gateway) as client:
        client = FeatureClient(client_order(client), Model("price").read_inputs)
        with pytest.raises(
            NoAnswerError, match="the model takes no feature of FeatureCompute users"
        ) as caught:
            await client.compute_inputs(MESSAGE)
    assert caught.value.fault is FaultOrigin.FEATURES
    assert gateway.requests == []


async def test_no_redirect_is_followed() -> None:
    gateway = Gateway()
    gateway.response = lambda: web.Response(status=307, headers={"Location": "/v2/models/users/ready"})
    async with asking(gateway) as client:
        with pytest.raises(NoAnswerError, match="HTTP status 307"):
            await client.compute_inputs(MESSAGE)
    assert len(gateway.requests) == 1


async def test_a_gateway_that_is_away_is_named() -> None:
    client = make_client(1, Model("age"))
    with pytest.raises(NoAnswerError, match="FeatureCompute users cannot be reached through 127") as caught:
        await client.compute_inputs(MESSAGE)
    assert caught.value.fault is FaultOrigin.FEATURES
    assert not await client.is_ready()
    await client.close_client()


@pytest.mark.parametrize("delivered", [1, 5, 6, 1000])
def test_no_message_is_given_up_for_features_that_are_away(delivered: int) -> None:
    verdict = judge_failure(FaultOrigin.FEATURES, "away", delivered, 5)
    assert isinstance(verdict, Redeliver)
    assert 1 <= verdict.after_s <= 30

"""The churn's load against a server that answers rightly, wrongly, and not at all: each is counted where it belongs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import numpy as np
import pytest
from harness.raw_load import METHOD, RawLoad
from tritonclient.grpc import service_pb2

from builders import probe_model
from builders.waiting import wait_until

Answering = Callable[[int, float], float | None]
"""What the n-th request for a row gets; None ends it with an error."""


@asynccontextmanager
async def a_server(answering: Answering) -> AsyncIterator[str]:
    """The address of a server of version 1."""
    count = 0

    async def infer(request: bytes, context: Any) -> bytes:
        nonlocal count
        count += 1
        (raw,) = service_pb2.ModelInferRequest.FromString(request).raw_input_contents
        score = answering(count, float(np.frombuffer(raw, np.float32)[0]))
        if score is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no healthy upstream")
        tensor = service_pb2.ModelInferResponse.InferOutputTensor(name="score", datatype="FP32", shape=[1, 1])
        return service_pb2.ModelInferResponse(
            model_version="1", outputs=[tensor], raw_output_contents=[np.float32(score).tobytes()]
        ).SerializeToString()

    service, _, method = METHOD.strip("/").partition("/")
    server = grpc.aio.server()
    handlers = {method: grpc.unary_unary_rpc_method_handler(infer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def right(x: float) -> float:
    return x + probe_model.STEP


@pytest.mark.parametrize(
    ("odd", "counts"),
    [
        pytest.param(lambda x: None, (1, 0), id="an error"),
        pytest.param(lambda x: right(x) + 1, (0, 1), id="the answer to another request"),
        pytest.param(lambda x: float("nan"), (0, 1), id="NaN"),
    ],
)
async def test_one_request_in_many_is_counted_where_it_belongs(
    odd: Callable[[float], float | None], counts: tuple[int, int]
) -> None:
    said: list[str] = []

    def run(address: str) -> RawLoad:
        load = RawLoad(address, "ads/probe", connections=2, callers=8, say=said.append)
        load.publish(1)
        with load:
            wait_until(lambda: load.answers >= 300, what="300 answers came", timeout_s=60)
        return load

    async with a_server(lambda number, x: odd(x) if number == 100 else right(x)) as address:
        load = await asyncio.to_thread(run, address)
    report = load.report()
    assert (report.failed, report.wrong) == counts
    assert report.versions == {"1": report.sent - 1}
    assert load.answers == report.sent - report.failed
    assert len(said) == 1


async def test_a_version_has_answered_only_what_was_asked_since() -> None:
    def run(address: str) -> None:
        load = RawLoad(address, "ads/probe", connections=1, callers=1, say=print)
        load.publish(1)
        with load:
            wait_until(lambda: load.has_answered(1, 0.0), what="version 1 answers", timeout_s=60)
            assert not load.has_answered(2, 0.0)
        assert load.report().problems == ()
        assert not load.has_answered(1, float("inf"))

    async with a_server(lambda number, x: right(x)) as address:
        await asyncio.to_thread(run, address)

"""Sends inference requests to one model server, made of what it says of its model."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from math import prod
from typing import Any, Final

import grpc.aio

from tidegate.errors import ApiUnavailableError, PermanentError
from tidegate.planning.bench import ServerCounters
from tidegate.planning.calibration import Inputs

# tritonclient publishes no types for its generated modules.
_messages: Any = import_module("tritonclient.grpc.service_pb2")
_service: Any = import_module("tritonclient.grpc.service_pb2_grpc")

_ASK_S: Final = 10
_REQUEST_S: Final = 30
_LOOKS: Final = 20
_COUNTED_S: Final = 0.05
_OPTIONS: Final = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
# How Python packs one number of each of Triton's types.
_CODES: Final = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h",
    "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip


class ModelLoad:
    """One model behind one address (host:port), over gRPC."""

    def __init__(
        self,
        address: str,
        model: str,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`headers` go with every call, as a gateway wants one that names the ModelAccess."""
        self._headers = tuple(headers)
        self._address = address
        self._model = model
        self._monotonic = monotonic
        self._channel: Any = None
        self._stub: Any = None
        self._requests: Sequence[Any] = ()

    async def __aenter__(self) -> ModelLoad:
        self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        self._stub = _service.GRPCInferenceServiceStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def prepare(self, inputs: Inputs, variants: int = 16) -> float:
        """Makes requests of the model's own metadata, and asks one; returns seconds of an empty question, the way there and back.

        Raises ApiUnavailableError when nobody answers, and PermanentError when the model refuses them.
        """
        try:
            question = _messages.ModelMetadataRequest(name=self._model)
            metadata = await self._stub.ModelMetadata(question, timeout=_ASK_S, metadata=self._headers)
            chance = random.Random(inputs.seed)  # noqa: S311  figures for a model, no secret
            self._requests = [_request(self._model, metadata.inputs, inputs, chance) for _ in range(variants)]
            await self.ask(0)
            times: list[float] = []
            for _ in range(9):
                began = self._monotonic()
                await self._stub.ServerLive(
                    _messages.ServerLiveRequest(), timeout=_ASK_S, metadata=self._headers
                )
                times.append(self._monotonic() - began)
            return sorted(times)[4]
        except grpc.aio.AioRpcError as error:
            message = f"model {self._model} at {self._address}: {error.code().name}: {error.details()}"
            away = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            raise (ApiUnavailableError if away else PermanentError)(message) from error

    async def ask(self, number: int) -> None:
        """Sends one of the requests, in turn by `number`. Raises grpc.aio.AioRpcError for one that fails."""
        request = self._requests[number % len(self._requests)]
        await self._stub.ModelInfer(request, timeout=_REQUEST_S, metadata=self._headers)

    async def counters(self, inferences: int = 0) -> ServerCounters | None:
        """What the server counted for all versions of the model; None where it does not say, as behind a gateway.

        A Triton counts a request a moment after it has answered it. So it is asked, for a second at most, until it has
        counted so many `inferences` and two looks in a row agree: they never do where others ask it as well.
        """
        found = await self._counters()
        for _ in range(_LOOKS):
            if found is None:
                break
            before = found
            await asyncio.sleep(_COUNTED_S)
            found = await self._counters()
            if found == before and before.inferences >= inferences:
                break
        return found

    async def _counters(self) -> ServerCounters | None:
        question = _messages.ModelStatisticsRequest(name=self._model)
        try:
            said = await self._stub.ModelStatistics(question, timeout=_ASK_S, metadata=self._headers)
        except grpc.aio.AioRpcError:
            return None
        versions = list(said.model_stats)
        if not versions:
            return None
        times = [each.inference_stats for each in versions]
        return ServerCounters(
            inferences=sum(each.inference_count for each in versions),
            executions=sum(each.execution_count for each in versions),
            failures=sum(each.fail.count for each in times),
            queue_s=sum(each.queue.ns for each in times) / 1e9,
            compute_s=sum(each.compute_infer.ns for each in times) / 1e9,
        )


def _request(model: str, tensors: Sequence[Any], inputs: Inputs, chance: random.Random) -> Any:
    request = _messages.ModelInferRequest(model_name=model)
    for tensor in tensors:
        shape = [_size(size, place, inputs) for place, size in enumerate(tensor.shape)]
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        request.raw_input_contents.append(_content(tensor.datatype, prod(shape), inputs.largest, chance))
    return request


def _size(size: int, place: int, inputs: Inputs) -> int:
    if size >= 0:
        return int(size)
    return inputs.rows if place == 0 else inputs.length


def _content(datatype: str, count: int, largest: int, chance: random.Random) -> bytes:
    """So many random values as Triton's raw content."""
    if datatype == "BYTES":
        words = [b"%d" % chance.randint(0, largest) for _ in range(count)]
        return b"".join(struct.pack("<I", len(word)) + word for word in words)
    code = _CODES.get(datatype)
    if code is None:
        message = f"an input has the type {datatype}, which is none of {', '.join(sorted(_CODES))}, BYTES"
        raise PermanentError(message)
    whole = not datatype.startswith("FP")
    most = 1 if datatype == "BOOL" else min(largest, 127)
    most = most if datatype in ("BOOL", "INT8", "UINT8") else largest
    values = [chance.randint(0, most) if whole else chance.random() for _ in range(count)]
    return struct.pack(f"<{count}{code}", *values)

"""Send inference requests to one model server, made from the metadata of its model."""

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
from tidegate.planning.diagnosis.bench import ServerCounters
from tidegate.planning.diagnosis.calibration import RandomInputs

# tritonclient publishes no types for its generated modules.
_messages: Any = import_module("tritonclient.grpc.service_pb2")
_service: Any = import_module("tritonclient.grpc.service_pb2_grpc")

_ASK_S: Final = 10
_REQUEST_S: Final = 30
_MAX_READS: Final = 20
_COUNTED_S: Final = 0.05
_OPTIONS: Final = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
# struct's format of one number of each of Triton's types.
_CODES: Final = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h",
    "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip


class LoadGenerator:
    """Load on one model behind one address (host:port), over gRPC."""

    def __init__(
        self,
        address: str,
        model: str,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Send `headers` with every call: a gateway needs one that names the ModelAccess."""
        self._headers = tuple(headers)
        self._address = address
        self._model = model
        self._monotonic = monotonic
        self._channel: Any = None
        self._stub: Any = None
        self._requests: Sequence[Any] = ()

    async def __aenter__(self) -> LoadGenerator:
        self._channel = grpc.aio.insecure_channel(self._address, options=_OPTIONS)
        self._stub = _service.GRPCInferenceServiceStub(self._channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def prepare_requests(self, inputs: RandomInputs, variants: int = 16) -> float:
        """Make requests from the model's metadata, send one, and return the round-trip seconds of an empty call.

        Raise ApiUnavailableError when there is no answer, and PermanentError when the server rejects them.
        """
        try:
            question = _messages.ModelMetadataRequest(name=self._model)
            metadata = await self._stub.ModelMetadata(question, timeout=_ASK_S, metadata=self._headers)
            random_source = random.Random(inputs.seed)  # noqa: S311  figures for a model, no secret
            self._requests = [
                build_request(self._model, metadata.inputs, inputs, random_source) for _ in range(variants)
            ]
            await self.send_request(0)
            times: list[float] = []
            for _ in range(9):
                started = self._monotonic()
                await self._stub.ServerLive(
                    _messages.ServerLiveRequest(), timeout=_ASK_S, metadata=self._headers
                )
                times.append(self._monotonic() - started)
            return sorted(times)[4]
        except grpc.aio.AioRpcError as error:
            message = f"model {self._model} at {self._address}: {error.code().name}: {error.details()}"
            is_unavailable = error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            raise (ApiUnavailableError if is_unavailable else PermanentError)(message) from error

    async def send_request(self, number: int) -> None:
        """Send one of the requests, in turn by `number`; raise grpc.aio.AioRpcError when it fails."""
        request = self._requests[number % len(self._requests)]
        await self._stub.ModelInfer(request, timeout=_REQUEST_S, metadata=self._headers)

    async def read_counters(self, inferences: int = 0) -> ServerCounters | None:
        """Return the server's counters over all versions of the model, or None where it has none, as behind a gateway.

        Triton counts a request a moment after it has answered it. So read the counters, for a second at most, until they have
        `inferences` and two reads agree; they never agree while others send requests too.
        """
        counters = await self._read_statistics()
        for _ in range(_MAX_READS):
            if counters is None:
                break
            previous = counters
            await asyncio.sleep(_COUNTED_S)
            counters = await self._read_statistics()
            if counters == previous and previous.inferences >= inferences:
                break
        return counters

    async def _read_statistics(self) -> ServerCounters | None:
        question = _messages.ModelStatisticsRequest(name=self._model)
        try:
            statistics = await self._stub.ModelStatistics(question, timeout=_ASK_S, metadata=self._headers)
        except grpc.aio.AioRpcError:
            return None
        versions = list(statistics.model_stats)
        if not versions:
            return None
        times = [version.inference_stats for version in versions]
        return ServerCounters(
            inferences=sum(version.inference_count for version in versions),
            executions=sum(version.execution_count for version in versions),
            failures=sum(entry.fail.count for entry in times),
            queue_s=sum(entry.queue.ns for entry in times) / 1e9,
            compute_s=sum(entry.compute_infer.ns for entry in times) / 1e9,
        )


def build_request(
    model: str, tensors: Sequence[Any], inputs: RandomInputs, random_source: random.Random
) -> Any:
    """Return one random request for a model with these inputs."""
    request = _messages.ModelInferRequest(model_name=model)
    for tensor in tensors:
        rows = 1 if tensor.name in inputs.shared_inputs else inputs.rows
        free = (rows, *[inputs.length] * len(tensor.shape))
        shape = [size if size >= 0 else free[position] for position, size in enumerate(tensor.shape)]
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=shape)
        request.raw_input_contents.append(
            _random_content(tensor.datatype, prod(shape), inputs.largest, random_source)
        )
    return request


def _random_content(datatype: str, count: int, largest: int, random_source: random.Random) -> bytes:
    """Return `count` random values as Triton's raw content."""
    if datatype == "BYTES":
        texts = [b"%d" % random_source.randint(0, largest) for _ in range(count)]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    code = _CODES.get(datatype)
    if code is None:
        message = f"input type {datatype} is not supported; use one of {', '.join(sorted(_CODES))}, BYTES"
        raise PermanentError(message)
    is_integer = not datatype.startswith("FP")
    maximum = 1 if datatype == "BOOL" else min(largest, 127)
    maximum = maximum if datatype in ("BOOL", "INT8", "UINT8") else largest
    values = [
        random_source.randint(0, maximum) if is_integer else random_source.random() for _ in range(count)
    ]
    return struct.pack(f"<{count}{code}", *values)

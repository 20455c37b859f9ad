"""A load that costs its client little: calls whose requests were serialized beforehand, from one event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Self

import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from builders import probe_model
from tidegate_localcluster.demo.load import Latencies, LoadReport, keep_count

METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
TIMEOUT_S: Final = 30.0
"""Longer than the route's own: what is lost is lost in the cluster."""
AFTER_FAILURE_S: Final = 0.1
OPTIONS: Final = (
    ("grpc.enable_retries", 0),  # a client that repeats a request would hide that it was lost
    ("grpc.use_local_subchannel_pool", 1),  # a connection for each channel
)


@dataclass(slots=True)
class Question:
    """One row that no other caller asks about, so that the answer to another request is a wrong one."""

    x: float
    _right: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def serialize(self) -> bytes:
        """Return the request."""
        tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 1])
        return service_pb2.ModelInferRequest(
            model_name="probe", inputs=[tensor], raw_input_contents=[self._row().tobytes()]
        ).SerializeToString()

    def judge(self, content: bytes, published: set[int]) -> int | str:
        """Return the version whose answer this is exactly, or say what is wrong with it."""
        # Answers of one version are the same bytes again and again; versions are only ever added.
        version = self._right.get(content)
        if version is not None:
            return version
        verdict = self._parse(content, published)
        if isinstance(verdict, int):
            self._right[content] = verdict
        return verdict

    def _parse(self, content: bytes, published: set[int]) -> int | str:
        try:
            answer: Any = service_pb2.ModelInferResponse.FromString(content)
        except DecodeError:
            return f"{content[:40]!r} is no answer"
        named = answer.model_version
        if not named.isdecimal() or int(named) not in published:
            return f"an answer of version {named!r}, which was never published"
        version = int(named)
        tensors = [(output.name, output.datatype, list(output.shape)) for output in answer.outputs]
        expected = probe_model.answer(self._row(), version).tobytes()
        if tensors != [("score", "FP32", [1, 1])] or list(answer.raw_output_contents) != [expected]:
            found = [
                np.frombuffer(raw[: len(raw) // 4 * 4], np.float32).tolist()[:4]
                for raw in answer.raw_output_contents
            ]
            return (
                f"an answer of version {version} to {self.x:g} that is not that version's: {tensors} {found}"
            )
        return version

    def _row(self) -> Any:
        return np.full((1, 1), self.x, dtype=np.float32)


def _describe(error: Exception) -> str:
    return (
        f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else repr(error)
    )


class RawLoad:
    """So many callers on so many connections, each in closed loop; counters are written by the loop's thread alone."""

    def __init__(
        self, address: str, access: str, *, connections: int, callers: int, say: Callable[[str], None]
    ) -> None:
        """`say` hears of each failure and wrong answer, from the thread of the load."""
        self._address, self._metadata = address, (("x-tidegate-access", access),)
        self._connections, self._callers, self._say = connections, callers, say
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._published: set[int] = set()
        self._versions: Counter[int] = Counter()
        self._sent_at: dict[int, float] = {}
        self._failures: Counter[str] = Counter()
        self._wrong: Counter[str] = Counter()
        self._latencies = Latencies()

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(2 * TIMEOUT_S)

    def publish(self, version: int) -> None:
        """From now on this version may answer."""
        self._published.add(version)

    def has_answered(self, version: int, since: float) -> bool:
        """Whether a request that was sent after `since` (time.monotonic) was answered by `version`."""
        return self._sent_at.get(version, 0.0) > since

    @property
    def answers(self) -> int:
        """How many came, right or wrong."""
        return sum(dict(self._versions).values()) + sum(dict(self._wrong).values())

    def report(self) -> LoadReport:
        """Return what became of the requests so far; once the load has ended, one without an answer has failed."""
        failures = dict(self._failures)
        if self._ended.is_set() and self._thread.is_alive():
            failures["no answer after the load ended"] = 1
        return LoadReport(
            versions={str(version): answers for version, answers in sorted(dict(self._versions).items())},
            failures=failures,
            wrong_answers=dict(self._wrong),
            latencies=Latencies(self._latencies.copy()),
            seconds=time.monotonic() - self._began,
        )

    async def _run(self) -> None:
        channels = [grpc.aio.insecure_channel(self._address, OPTIONS) for _ in range(self._connections)]
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._callers):
                ask = channels[number % len(channels)].unary_unary(METHOD)
                tasks.create_task(self._work(ask, Question(float(number))))
        for channel in channels:
            await channel.close()

    async def _work(self, ask: Any, question: Question) -> None:
        request = question.serialize()
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                content = await ask(request, metadata=self._metadata, timeout=TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 - a request that fails in another way is lost as well
                text = _describe(error)
                self._say(f"failed after {time.monotonic() - began:.3f} s: {text}")
                keep_count(self._failures, text)
                await asyncio.sleep(AFTER_FAILURE_S)
                continue
            seconds = time.monotonic() - began
            verdict = question.judge(content, self._published)
            if isinstance(verdict, str):
                self._say(f"wrong: {verdict}")
                keep_count(self._wrong, verdict)
                continue
            self._versions[verdict] += 1
            self._sent_at[verdict] = began
            self._latencies.add(seconds)

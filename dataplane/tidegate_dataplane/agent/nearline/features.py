"""Client of a FeatureCompute behind the gateways: it turns the tensors of a message into the inputs of the model."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import aiohttp

from tidegate_dataplane.agent.nearline.failure_policy import LONGEST_PAUSE_S as LONGEST_REDELIVERY_S
from tidegate_dataplane.agent.nearline.failure_policy import FaultOrigin
from tidegate_dataplane.agent.nearline.message import InferenceTensor, MalformedError
from tidegate_dataplane.agent.nearline.model import MAX_MESSAGE_CHARS, NoAnswerError
from tidegate_dataplane.agent.triton import READY_TIMEOUT_S
from tidegate_dataplane.contract import AS_OF, StreamFeatures, TensorSpec
from tidegate_dataplane.contract.answers import make_bounded_session, read_body
from tidegate_dataplane.pipeline.wire import (
    LENGTH_HEADER,
    Arrays,
    EncodedTensor,
    decode_response,
    encode_document,
    encode_tensor,
    read_error_message,
)

MAX_ANSWER_BYTES: Final = 16 << 20
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 30.0
REPORTED_AFTER_S: Final = 5.0
"""A shorter absence is a rollout or a lost connection, and is not reported."""
_OF_MESSAGE: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
"""Statuses for which the message is the cause; for every other one, the FeatureCompute does not answer."""
_TIME: Final = TensorSpec(name=AS_OF, dtype="INT64", shape=(-1, 1))

ReadInputs = Callable[[], Awaitable[frozenset[str]]]
"""Returns the names of the inputs of the model that serves now; raises NoAnswerError."""


@dataclass(frozen=True, slots=True)
class FeaturedInputs:
    """The inputs of the model for one message, and the optional outputs of the FeatureCompute, which belong in the result."""

    tensors: tuple[InferenceTensor, ...]
    marks: tuple[InferenceTensor, ...] = ()


class FeatureClient:
    """Asks for the features of one message after the other; several may be in flight."""

    def __init__(
        self, order: StreamFeatures, read_inputs: ReadInputs, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.gateway = order.gateway
        self._call = order.call
        self._marked = frozenset(order.marked_outputs)
        self._read_inputs = read_inputs
        self._clock = clock
        self._inputs: Mapping[str, TensorSpec] = {
            **{spec.name: spec for spec in self._call.inputs},
            AS_OF: _TIME,
        }
        self._base = f"http://{order.gateway}/v2/models/{self._call.model}"
        self._session: aiohttp.ClientSession | None = None
        self._model_inputs: frozenset[str] | None = None
        self._problem, self._failing_since = "", 0.0
        self._pause_s, self._retry_at = FIRST_PAUSE_S, 0.0
        self._ready_since: float | None = None
        """Since when the FeatureCompute is ready again after a request that was not answered."""
        self._settled_s = self._call.timeout_us / 1e6 + LONGEST_REDELIVERY_S + REPORTED_AFTER_S

    @property
    def is_failing(self) -> bool:
        """Return whether no request was answered since one was not."""
        return bool(self._problem)

    @property
    def problem(self) -> str:
        """Return why the FeatureCompute has not answered for some seconds; empty if it has.

        It is also empty once the FeatureCompute has been ready longer than the longest pause until a failed message comes again.
        """
        lasts = self._clock() - self._failing_since >= REPORTED_AFTER_S
        return self._problem if lasts and not self._is_over() else ""

    def _is_over(self) -> bool:
        return self._ready_since is not None and self._clock() - self._ready_since >= self._settled_s

    async def close_client(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def is_ready(self) -> bool:
        """Return whether to send another request: after one that was not answered, once the FeatureCompute is ready.

        It is asked after pauses that grow with each request that fails although it was ready.
        """
        if not self._problem:
            return True
        if self._clock() < self._retry_at:
            return False
        self._retry_at = self._clock() + self._pause_s
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                async with self._open_session().get(
                    f"{self._base}/ready", headers=self._call.headers, allow_redirects=False
                ) as response:
                    if response.status != HTTPStatus.OK:
                        text = _find_error(await read_body(response, MAX_ANSWER_BYTES))
                        return self._note_unready(self._describe_status(response.status, text))
        except (TimeoutError, OSError, ValueError, aiohttp.ClientError) as error:
            return self._note_unready(self._describe_error(error, READY_TIMEOUT_S))
        if self._ready_since is None:
            self._ready_since = self._clock()
        return True

    async def refresh_model(self) -> bool:
        """Read the inputs of the model again, and return whether they have changed."""
        before, self._model_inputs = self._model_inputs, await self._read_inputs()
        return before != self._model_inputs

    async def compute_inputs(self, tensors: Sequence[InferenceTensor]) -> FeaturedInputs:
        """Return the inputs of the model: the features, and the tensors of the message that are for the model.

        Features that may lack the newest events have a mark that names streams of the FeatureCompute.

        Raises:
            MalformedError: the message lacks a tensor that the features need, or has one that is a feature.
            NoAnswerError: there is no answer, or the FeatureCompute rejects the request.
        """
        if self._model_inputs is None:
            await self.refresh_model()
        taken = self._model_inputs or frozenset()
        outputs = tuple(spec for spec in self._call.outputs if spec.name in taken)
        if not outputs:
            raise self._note_absence(f"the model takes no feature of {self._call.title}")
        encoded = self._encode_inputs({tensor.name: tensor for tensor in tensors})
        marks = () if self._marked.isdisjoint(taken) else self._call.optional_outputs
        arrays = await self._request_features(encoded, outputs, marks)

        def read_tensors(specs: Sequence[TensorSpec]) -> tuple[InferenceTensor, ...]:
            return tuple(
                InferenceTensor(spec.name, spec.dtype, arrays[spec.name])
                for spec in specs
                if spec.name in arrays
            )

        passed = (tensor for tensor in tensors if tensor.name not in self._inputs or tensor.name in taken)
        return FeaturedInputs((*passed, *read_tensors(outputs)), read_tensors(marks))

    def _encode_inputs(self, tensors: Mapping[str, InferenceTensor]) -> list[EncodedTensor]:
        title = self._call.title
        for spec in self._call.outputs:
            if spec.name in tensors:
                raise MalformedError(f"its input {spec.name} is a feature of {title}: leave it out")
        for spec in self._call.inputs:
            if spec.name not in tensors:
                raise MalformedError(f"it has no input {spec.name}, which {title} needs")
        encoded: list[EncodedTensor] = []
        for spec in self._inputs.values():
            tensor = tensors.get(spec.name)
            if tensor is None:
                continue
            if tensor.datatype != spec.dtype:
                raise MalformedError(
                    f"its input {spec.name} is {tensor.datatype}, and {title} needs {spec.dtype}"
                )
            encoded.append(encode_tensor(tensor.array, spec))
        return encoded

    async def _request_features(
        self, encoded: Sequence[EncodedTensor], outputs: Sequence[TensorSpec], marks: Sequence[TensorSpec]
    ) -> Arrays:
        document = encode_document(encoded, (*outputs, *marks))
        body = b"".join((document, *(tensor.content for tensor in encoded)))
        headers = {**self._call.headers, LENGTH_HEADER: str(len(document))}
        limit_s = self._call.timeout_us / 1e6
        try:
            async with asyncio.timeout(limit_s):
                async with self._open_session().post(
                    f"{self._base}/infer", data=body, headers=headers, allow_redirects=False
                ) as response:
                    answer = await read_body(response, MAX_ANSWER_BYTES)
        except (TimeoutError, OSError, ValueError, aiohttp.ClientError) as error:
            raise self._note_absence(self._describe_error(error, limit_s)) from error
        if response.status in _OF_MESSAGE:
            self._note_answer()
            raise NoAnswerError(FaultOrigin.MESSAGE, f"{self._call.title} rejects it: {_find_error(answer)}")
        if response.status != HTTPStatus.OK:
            raise self._note_absence(self._describe_status(response.status, _find_error(answer)))
        try:
            length = int(response.headers.get(LENGTH_HEADER) or len(answer))
            arrays = decode_response(answer, length, outputs, marks)
        except ValueError as error:
            message = f"the response of {self._call.title} cannot be read: {error}"
            raise self._note_absence(message[:MAX_MESSAGE_CHARS]) from error
        self._note_answer()
        return arrays

    def _note_answer(self) -> None:
        self._problem, self._pause_s, self._ready_since = "", FIRST_PAUSE_S, None

    def _note_unready(self, problem: str) -> bool:
        if self._is_over():
            self._failing_since = self._clock()
        self._problem, self._ready_since = problem, None
        return False

    def _note_absence(self, problem: str) -> NoAnswerError:
        now = self._clock()
        if not self._problem or self._is_over():
            self._failing_since = now
        if self._ready_since is not None:
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        self._problem, self._retry_at, self._ready_since = problem, now + self._pause_s, None
        return NoAnswerError(FaultOrigin.FEATURES, problem)

    def _describe_error(self, error: Exception, limit_s: float) -> str:
        reason = f"no answer within {limit_s:g} s" if isinstance(error, TimeoutError) else str(error)
        text = f"{self._call.title} cannot be reached through {self.gateway}: {reason}"
        return text[:MAX_MESSAGE_CHARS]

    def _describe_status(self, status: int, reason: str) -> str:
        return f"{self._call.title} does not answer: HTTP status {status}: {reason}"[:MAX_MESSAGE_CHARS]

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Each request has a limit of its own.
            self._session = make_bounded_session(aiohttp.ClientTimeout())
        return self._session


def _find_error(body: bytes) -> str:
    return read_error_message(body[: 4 * MAX_MESSAGE_CHARS], MAX_MESSAGE_CHARS) or "no text"

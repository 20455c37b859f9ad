"""Client of a FeatureCompute behind the gateways: it turns the tensors of a message into the inputs of the model."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp

from tidegate_dataplane.agent.nearline.failure_policy import FaultOrigin
from tidegate_dataplane.agent.nearline.message import InferenceTensor, MalformedError
from tidegate_dataplane.agent.nearline.model import MAX_MESSAGE_CHARS, NoAnswerError
from tidegate_dataplane.agent.triton import READY_TIMEOUT_S
from tidegate_dataplane.contract import AS_OF, StreamFeatures, TensorSpec
from tidegate_dataplane.pipeline.wire import (
    LENGTH_HEADER,
    Arrays,
    EncodedTensor,
    decode_response,
    encode_document,
    encode_tensor,
)

MAX_ANSWER_BYTES: Final = 64 << 20
_OF_MESSAGE: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
"""Statuses for which the message is the cause; for every other one, the FeatureCompute does not answer."""
_TIME: Final = TensorSpec(name=AS_OF, dtype="INT64", shape=(-1, 1))


class FeatureClient:
    """Asks for the features of one message after the other; several may be in flight."""

    def __init__(self, order: StreamFeatures) -> None:
        self._order = order
        self._call = order.call
        self._inputs: Mapping[str, TensorSpec] = {
            **{spec.name: spec for spec in self._call.inputs},
            AS_OF: _TIME,
        }
        self._base = f"http://{order.gateway}/v2/models/{self._call.model}"
        self._session: aiohttp.ClientSession | None = None
        self.problem = ""
        """Why the FeatureCompute does not answer; empty if it answered the last request, or before the first."""

    async def close_client(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def is_ready(self) -> bool:
        """Return whether the FeatureCompute answers; it is asked only after a request that it did not answer."""
        if not self.problem:
            return True
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                async with self._open_session().get(
                    f"{self._base}/ready", headers=self._call.headers
                ) as response:
                    if response.status != HTTPStatus.OK:
                        self.problem = self._describe_status(response.status, await _read_text(response))
                        return False
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            self.problem = self._describe_error(error, READY_TIMEOUT_S)
            return False
        self.problem = ""
        return True

    async def compute_inputs(self, tensors: Sequence[InferenceTensor]) -> tuple[InferenceTensor, ...]:
        """Return the inputs of the model: the features, and the tensors of the message that are for the model.

        Raises:
            MalformedError: the message lacks a tensor that the features need, or has one that is a feature.
            NoAnswerError: there is no answer, or the FeatureCompute rejects the request.
        """
        encoded = self._encode_inputs({tensor.name: tensor for tensor in tensors})
        arrays = await self._request_features(encoded)
        features = (InferenceTensor(spec.name, spec.dtype, arrays[spec.name]) for spec in self._call.outputs)
        passed = (
            tensor
            for tensor in tensors
            if tensor.name not in self._inputs or tensor.name in self._order.passed_inputs
        )
        return (*passed, *features)

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

    async def _request_features(self, encoded: Sequence[EncodedTensor]) -> Arrays:
        document = encode_document(encoded, self._call.outputs)
        body = b"".join((document, *(tensor.content for tensor in encoded)))
        headers = {**self._call.headers, LENGTH_HEADER: str(len(document))}
        limit_s = self._call.timeout_us / 1e6
        try:
            async with asyncio.timeout(limit_s):
                async with self._open_session().post(
                    f"{self._base}/infer", data=body, headers=headers
                ) as response:
                    answer = await response.content.read(MAX_ANSWER_BYTES + 1)
                    while len(answer) <= MAX_ANSWER_BYTES and (
                        piece := await response.content.read(MAX_ANSWER_BYTES + 1 - len(answer))
                    ):
                        answer += piece
        except (TimeoutError, OSError, aiohttp.ClientError) as error:
            raise self._note_absence(self._describe_error(error, limit_s)) from error
        if response.status in _OF_MESSAGE:
            self.problem = ""
            reason = _find_error(answer)
            raise NoAnswerError(FaultOrigin.MESSAGE, f"{self._call.title} rejects it: {reason}")
        if response.status != HTTPStatus.OK:
            raise self._note_absence(self._describe_status(response.status, _find_error(answer)))
        try:
            if len(answer) > MAX_ANSWER_BYTES:
                raise ValueError(f"it has more than {MAX_ANSWER_BYTES >> 20} MiB")
            length = int(response.headers.get(LENGTH_HEADER) or len(answer))
            arrays = decode_response(answer, length, self._call.outputs)
        except ValueError as error:
            raise self._note_absence(
                f"the response of {self._call.title} cannot be read: {error}"[:MAX_MESSAGE_CHARS]
            ) from error
        self.problem = ""
        return arrays

    def _note_absence(self, problem: str) -> NoAnswerError:
        self.problem = problem
        return NoAnswerError(FaultOrigin.FEATURES, problem)

    def _describe_error(self, error: Exception, limit_s: float) -> str:
        reason = f"no answer within {limit_s:g} s" if isinstance(error, TimeoutError) else str(error)
        return f"{self._call.title} cannot be reached through {self._order.gateway}: {reason}"[
            :MAX_MESSAGE_CHARS
        ]

    def _describe_status(self, status: int, reason: str) -> str:
        return f"{self._call.title} does not answer: HTTP status {status}: {reason}"[:MAX_MESSAGE_CHARS]

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False)
        return self._session


async def _read_text(response: aiohttp.ClientResponse) -> str:
    return _find_error(await response.content.read(4 * MAX_MESSAGE_CHARS))


def _find_error(body: bytes) -> str:
    """Return the error in the JSON of a server of models, else the beginning of the text."""
    text = body[: 4 * MAX_MESSAGE_CHARS].decode(errors="replace").strip()
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text[:MAX_MESSAGE_CHARS] or "no text"
    error = document.get("error") if isinstance(document, dict) else None
    return str(error or text)[:MAX_MESSAGE_CHARS]

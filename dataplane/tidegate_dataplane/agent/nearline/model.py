"""Client of the model in the pod's own Triton, over gRPC, one message at a time."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
from tritonclient.grpc import InferInput, aio  # type: ignore[import-untyped]  # publishes no types
from tritonclient.utils import InferenceServerException  # type: ignore[import-untyped]

from tidegate_dataplane.agent.nearline.failure_policy import FaultOrigin
from tidegate_dataplane.agent.nearline.message import InferenceTensor, MalformedError
from tidegate_dataplane.agent.triton import CHANNEL_OPTIONS, READY_TIMEOUT_S
from tidegate_dataplane.contract import TensorSpec

INFER_TIMEOUT_S: Final = 60.0
"""Limit for one request; a slower one counts as a failure of the model."""
MAX_MESSAGE_CHARS: Final = 500
FAULTS: Final[Mapping[str, FaultOrigin]] = {
    "INVALID_ARGUMENT": FaultOrigin.MESSAGE,
    "UNAVAILABLE": FaultOrigin.SERVER,
    "NOT_FOUND": FaultOrigin.SERVER,
    "CANCELLED": FaultOrigin.SERVER,
}
"""By name of the gRPC status; every other status is unclear."""
UNLIMITED: Final = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class NoAnswerError(Exception):
    """The model did not answer a message; the text is the server's."""

    def __init__(self, fault: FaultOrigin, message: str) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """Tensors of a model, with the batch dimension if it has one, and the most rows of one request."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    rows: int


class AnsweringModel(Protocol):
    """A model that answers messages."""

    async def infer_outputs(
        self, request_id: str, inputs: Sequence[InferenceTensor]
    ) -> tuple[str, tuple[InferenceTensor, ...]]:
        """Return the version that answered and its outputs; raises as TritonModel."""
        ...

    async def close_connection(self) -> None:
        """Close the connections."""
        ...


class TritonModel:
    """Client of one model of one server."""

    def __init__(self, address: str, name: str, version: str = "") -> None:
        """Connect to `address`; an empty `version` means the newest that the server has."""
        self._name, self._version = name, version
        self._client: Any = aio.InferenceServerClient(address, channel_args=[*CHANNEL_OPTIONS, *UNLIMITED])

    async def close_connection(self) -> None:
        """Close the channel."""
        await self._client.close()

    async def is_ready(self) -> bool:
        """Return whether the model answers."""
        try:
            return bool(
                await self._client.is_model_ready(self._name, self._version, client_timeout=READY_TIMEOUT_S)
            )
        except (InferenceServerException, grpc.RpcError, OSError):
            return False

    async def get_signature(self) -> ModelSignature:
        """Return inputs and outputs; `rows` is the most that one request may have, 0 for a model without batches.

        Raises:
            NoAnswerError: the server does not answer.
        """
        try:
            metadata = await self._client.get_model_metadata(
                self._name, self._version, as_json=True, client_timeout=INFER_TIMEOUT_S
            )
            config = await self._client.get_model_config(
                self._name, self._version, as_json=True, client_timeout=INFER_TIMEOUT_S
            )
        except (InferenceServerException, grpc.RpcError, OSError) as error:
            raise NoAnswerError(FaultOrigin.SERVER, str(error)[:MAX_MESSAGE_CHARS]) from error
        rows = int(config.get("config", {}).get("max_batch_size", 0))
        return ModelSignature(
            _parse_specs(metadata.get("inputs", ())), _parse_specs(metadata.get("outputs", ())), rows
        )

    async def infer_outputs(
        self, request_id: str, inputs: Sequence[InferenceTensor]
    ) -> tuple[str, tuple[InferenceTensor, ...]]:
        """Return the version that answered and its outputs.

        Raises:
            NoAnswerError: there is no answer.
            MalformedError: the inputs cannot be sent.
        """
        try:
            request_inputs = [_make_input(tensor) for tensor in inputs]
        except Exception as error:  # whatever the client's own checks raise is about this one message
            raise MalformedError(f"its inputs cannot be sent: {error}") from error
        try:
            async with asyncio.timeout(INFER_TIMEOUT_S):
                answer = await self._client.infer(
                    self._name,
                    request_inputs,
                    model_version=self._version,
                    request_id=request_id,
                    client_timeout=INFER_TIMEOUT_S,
                )
        except InferenceServerException as error:
            status = str(error.status() or "").removeprefix("StatusCode.")
            fault = FAULTS.get(status, FaultOrigin.UNCLEAR)
            raise NoAnswerError(fault, str(error.message()).strip()[:MAX_MESSAGE_CHARS]) from error
        except TimeoutError as error:
            raise NoAnswerError(FaultOrigin.UNCLEAR, f"no answer within {INFER_TIMEOUT_S:g} s") from error
        except (grpc.RpcError, OSError) as error:
            raise NoAnswerError(FaultOrigin.SERVER, str(error)[:MAX_MESSAGE_CHARS]) from error
        except Exception as error:  # the client's own, about this request
            raise NoAnswerError(
                FaultOrigin.UNCLEAR, f"{type(error).__name__}: {error}"[:MAX_MESSAGE_CHARS]
            ) from error
        try:
            response = answer.get_response()
            outputs = tuple(
                InferenceTensor(output.name, output.datatype, answer.as_numpy(output.name))
                for output in response.outputs
            )
        except Exception as error:  # a tensor that numpy does not know
            raise NoAnswerError(
                FaultOrigin.UNCLEAR, f"its answer cannot be read: {error}"[:MAX_MESSAGE_CHARS]
            ) from error
        return str(response.model_version), outputs


def _make_input(tensor: InferenceTensor) -> Any:
    request_input: Any = InferInput(tensor.name, list(tensor.array.shape), tensor.datatype)
    request_input.set_data_from_numpy(tensor.array)
    return request_input


def _parse_specs(tensors: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            name=tensor["name"],
            dtype=tensor["datatype"],
            shape=tuple(int(size) for size in tensor.get("shape", ())),
        )
        for tensor in tensors
    )

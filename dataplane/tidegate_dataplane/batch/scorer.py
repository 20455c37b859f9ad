"""Score batches of rows concurrently, and narrow a refused batch down to the rows that the model refuses."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate_dataplane.agent.nearline.failure_policy import FaultOrigin
from tidegate_dataplane.agent.nearline.message import InferenceTensor, MalformedError
from tidegate_dataplane.agent.nearline.model import NoAnswerError
from tidegate_dataplane.batch.columns import Array

MAX_CONCURRENT_REQUESTS: Final = 4
"""Concurrent requests: while one runs, the next ones wait in the server's queue."""
MAX_RETRIES: Final = 3
"""How often a batch whose failure may be the server's fault is sent again, with no other retry beside it."""
READY_POLL_S: Final = 0.2
RETRY_PAUSE_S: Final = 0.5


class InferenceModel(Protocol):
    """The methods of a model client that scoring needs."""

    async def infer_outputs(
        self, request_id: str, inputs: Sequence[InferenceTensor]
    ) -> tuple[str, tuple[InferenceTensor, ...]]:
        """Return the version that answered and its outputs.

        Raises:
            NoAnswerError: the server refused the request or is not reachable.
            MalformedError: the inputs do not match the model.
        """
        ...

    async def is_ready(self) -> bool:
        """Return whether the model is ready to answer."""
        ...


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The rows of one request; `first` is the number of the first one in the table."""

    first_row: int
    rows: int
    inputs: tuple[InferenceTensor, ...]

    def slice_rows(self, start: int, end: int) -> "RowBatch":
        """Return the rows from `start` up to `end`."""
        inputs = tuple(
            InferenceTensor(tensor.name, tensor.datatype, tensor.array[start:end]) for tensor in self.inputs
        )
        return RowBatch(self.first_row + start, end - start, inputs)


@dataclass(frozen=True, slots=True)
class RowsOutcome:
    """The model's outputs for consecutive rows, or why it refused a row (`outputs` is then empty)."""

    first_row: int
    rows: int
    outputs: Mapping[str, Array]
    refusal: str = ""
    may_be_server_fault: bool = False
    """Whether the refusal may be the server's fault, such as a broken GPU."""


class BatchScorer:
    """Sends batches to one model."""

    def __init__(self, model: InferenceModel, name: str) -> None:
        self._model = model
        self._name = name
        self._retry_lock = asyncio.Lock()
        self._refusals_left = 0

    async def wait_until_ready(self) -> None:
        """Wait until the model is ready, however long fetching it or restarting the server takes."""
        while not await self._model.is_ready():  # noqa: ASYNC110 - the server sends no event
            await asyncio.sleep(READY_POLL_S)

    async def score_batches(self, batches: Sequence[RowBatch], max_refusals: int) -> list[RowsOutcome]:
        """Return the answers for all rows, in order.

        When more than `max_refusals` rows are refused, it stops and returns the answers so far.
        """
        self._refusals_left = max_refusals
        slots = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

        async def score(batch: RowBatch) -> list[RowsOutcome]:
            async with slots:
                return await self._score_batch(batch)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(score(batch)) for batch in batches]
        return [answer for task in tasks for answer in task.result()]

    async def _score_batch(self, batch: RowBatch) -> list[RowsOutcome]:
        if self._refusals_left < 0:
            return []
        try:
            return [await self._infer_batch(batch)]
        except (NoAnswerError, MalformedError) as error:
            # One retry at a time: another batch may have ended the server, or filled its memory.
            async with self._retry_lock:
                return await self._retry_batch(batch, error)

    async def _retry_batch(self, batch: RowBatch, error: NoAnswerError | MalformedError) -> list[RowsOutcome]:
        for _ in range(MAX_RETRIES):
            if self._refusals_left < 0 or not _may_be_server_fault(error):
                break
            await asyncio.sleep(RETRY_PAUSE_S)
            await self.wait_until_ready()
            try:
                return [await self._infer_batch(batch)]
            except (NoAnswerError, MalformedError) as another:
                error = another
        if self._refusals_left < 0:
            return []
        if batch.rows == 1:
            self._refusals_left -= 1
            return [
                RowsOutcome(
                    batch.first_row,
                    1,
                    {},
                    refusal=_describe_refusal(error),
                    may_be_server_fault=_may_be_server_fault(error),
                )
            ]
        middle = batch.rows // 2
        return [
            answer
            for half in (batch.slice_rows(0, middle), batch.slice_rows(middle, batch.rows))
            for answer in await self._score_half(half)
        ]

    async def _score_half(self, batch: RowBatch) -> list[RowsOutcome]:
        if self._refusals_left < 0:
            return []
        try:
            return [await self._infer_batch(batch)]
        except (NoAnswerError, MalformedError) as error:
            return await self._retry_batch(batch, error)

    async def _infer_batch(self, batch: RowBatch) -> RowsOutcome:
        _, outputs = await self._model.infer_outputs(f"{self._name}-{batch.first_row}", batch.inputs)
        for tensor in outputs:
            if len(tensor.array.shape) == 0 or len(tensor.array) != batch.rows:
                raise NoAnswerError(
                    FaultOrigin.UNCLEAR,
                    f"output {tensor.name!r} has shape {list(tensor.array.shape)} for {batch.rows} rows",
                )
        return RowsOutcome(batch.first_row, batch.rows, {tensor.name: tensor.array for tensor in outputs})


def _may_be_server_fault(error: NoAnswerError | MalformedError) -> bool:
    return isinstance(error, NoAnswerError) and error.fault is not FaultOrigin.MESSAGE


def _describe_refusal(error: NoAnswerError | MalformedError) -> str:
    if isinstance(error, NoAnswerError) and error.fault is FaultOrigin.SERVER:
        return (
            f"the server was gone each of {MAX_RETRIES + 1} times it was asked, last alone: {error.message}"
        )
    return error.message if isinstance(error, NoAnswerError) else str(error)

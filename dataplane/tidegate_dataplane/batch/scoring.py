"""Score batches of rows concurrently, and narrow a refused batch down to the rows that the model refuses."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate_dataplane.agent.nearline.failure_policy import FaultOrigin
from tidegate_dataplane.agent.nearline.message import InferenceTensor, MalformedError
from tidegate_dataplane.agent.nearline.model import NoAnswerError
from tidegate_dataplane.batch.columns import Array

AT_ONCE: Final = 4
"""Concurrent requests: while one runs, the next ones wait in the server's queue."""
TRIES: Final = 3
"""How often a batch whose failure may be the server's fault is sent again, with no other retry beside it."""
LOOK_EVERY_S: Final = 0.2
PAUSE_S: Final = 0.5


class Asked(Protocol):
    """The methods of a model client that scoring needs."""

    async def infer(self, request_id: str, inputs: Sequence[InferenceTensor]) -> tuple[str, tuple[InferenceTensor, ...]]:
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
class Batch:
    """The rows of one request; `first` is the number of the first one in the table."""

    first: int
    rows: int
    inputs: tuple[InferenceTensor, ...]

    def cut(self, start: int, end: int) -> "Batch":
        """Return the rows from `start` up to `end`."""
        inputs = tuple(
            InferenceTensor(tensor.name, tensor.datatype, tensor.array[start:end]) for tensor in self.inputs
        )
        return Batch(self.first + start, end - start, inputs)


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's outputs for consecutive rows, or why it refused a row (`outputs` is then empty)."""

    first: int
    rows: int
    outputs: Mapping[str, Array]
    refused: str = ""
    by_server: bool = False
    """Whether the refusal may be the server's fault, such as a broken GPU."""


class Scorer:
    """Sends batches to one model."""

    def __init__(self, model: Asked, name: str) -> None:
        self._model = model
        self._name = name
        self._retry_lock = asyncio.Lock()
        self._refusals_left = 0

    async def ready(self) -> None:
        """Wait until the model is ready, however long fetching it or restarting the server takes."""
        while not await self._model.is_ready():  # noqa: ASYNC110 - the server sends no event
            await asyncio.sleep(LOOK_EVERY_S)

    async def scored(self, batches: Sequence[Batch], spare: int) -> list[Answer]:
        """Return the answers for all rows, in order.

        When more than `spare` rows are refused, it stops and returns the answers so far.
        """
        self._refusals_left = spare
        slots = asyncio.Semaphore(AT_ONCE)

        async def score(batch: Batch) -> list[Answer]:
            async with slots:
                return await self._first(batch)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(score(batch)) for batch in batches]
        return [answer for task in tasks for answer in task.result()]

    async def _first(self, batch: Batch) -> list[Answer]:
        if self._refusals_left < 0:
            return []
        try:
            return [await self._ask(batch)]
        except (NoAnswerError, MalformedError) as error:
            # One retry at a time: another batch may have ended the server, or filled its memory.
            async with self._retry_lock:
                return await self._again(batch, error)

    async def _again(self, batch: Batch, error: NoAnswerError | MalformedError) -> list[Answer]:
        for _ in range(TRIES):
            if self._refusals_left < 0 or not _by_server(error):
                break
            await asyncio.sleep(PAUSE_S)
            await self.ready()
            try:
                return [await self._ask(batch)]
            except (NoAnswerError, MalformedError) as another:
                error = another
        if self._refusals_left < 0:
            return []
        if batch.rows == 1:
            self._refusals_left -= 1
            return [Answer(batch.first, 1, {}, refused=_words(error), by_server=_by_server(error))]
        middle = batch.rows // 2
        return [
            answer
            for half in (batch.cut(0, middle), batch.cut(middle, batch.rows))
            for answer in await self._half(half)
        ]

    async def _half(self, batch: Batch) -> list[Answer]:
        if self._refusals_left < 0:
            return []
        try:
            return [await self._ask(batch)]
        except (NoAnswerError, MalformedError) as error:
            return await self._again(batch, error)

    async def _ask(self, batch: Batch) -> Answer:
        _, outputs = await self._model.infer(f"{self._name}-{batch.first}", batch.inputs)
        for tensor in outputs:
            if len(tensor.array.shape) == 0 or len(tensor.array) != batch.rows:
                raise NoAnswerError(
                    FaultOrigin.UNCLEAR,
                    f"output {tensor.name!r} has shape {list(tensor.array.shape)} for {batch.rows} rows",
                )
        return Answer(batch.first, batch.rows, {tensor.name: tensor.array for tensor in outputs})


def _by_server(error: NoAnswerError | MalformedError) -> bool:
    return isinstance(error, NoAnswerError) and error.fault is not FaultOrigin.MESSAGE


def _words(error: NoAnswerError | MalformedError) -> str:
    if isinstance(error, NoAnswerError) and error.fault is FaultOrigin.SERVER:
        return f"the server was gone each of {TRIES + 1} times it was asked, last alone: {error.message}"
    return error.message if isinstance(error, NoAnswerError) else str(error)

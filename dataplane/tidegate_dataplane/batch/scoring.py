"""Rows asked of the model: batches side by side, always the same ones, and what is refused narrowed down to its rows."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tidegate_dataplane.agent.nearline.failure_policy import FaultOrigin
from tidegate_dataplane.agent.nearline.message import InferenceTensor, MalformedError
from tidegate_dataplane.agent.nearline.model import NoAnswerError
from tidegate_dataplane.batch.columns import Array

AT_ONCE: Final = 4
"""Requests side by side: one runs, and the next ones wait in the server already."""
TRIES: Final = 3
"""How often rows are asked, alone, that failed of something which may have been an accident."""
LOOK_EVERY_S: Final = 0.2
PAUSE_S: Final = 0.5


class Asked(Protocol):
    """What is needed of the model."""

    async def infer(
        self, request_id: str, inputs: Sequence[InferenceTensor]
    ) -> tuple[str, tuple[InferenceTensor, ...]]:
        """Return the version that answered and its outputs; raises NoAnswerError, or MalformedError."""
        ...

    async def is_ready(self) -> bool:
        """Return whether it answers."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one request: `first` is the table's number of the first one."""

    first: int
    rows: int
    inputs: tuple[InferenceTensor, ...]

    def cut(self, start: int, end: int) -> "Batch":
        """Some of these rows."""
        inputs = tuple(InferenceTensor(one.name, one.datatype, one.array[start:end]) for one in self.inputs)
        return Batch(self.first + start, end - start, inputs)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said to rows that follow each other, or why it refused one (`outputs` is then empty)."""

    first: int
    rows: int
    outputs: Mapping[str, Array]
    refused: str = ""
    by_server: bool = False
    """Whether the row was refused for what may be the server's fault, such as a GPU that is broken."""


class Scorer:
    """Asks one model."""

    def __init__(self, model: Asked, name: str) -> None:
        self._model = model
        self._name = name
        self._alone = asyncio.Lock()
        self._spare = 0

    async def ready(self) -> None:
        """Wait until the model answers: fetching it, or a server that starts again, may take its time."""
        while not await self._model.is_ready():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(LOOK_EVERY_S)

    async def scored(self, batches: Sequence[Batch], spare: int) -> list[Answer]:
        """The answers to all rows, in their order; once more than `spare` rows are refused, those that there are."""
        self._spare = spare
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(batch: Batch) -> list[Answer]:
            async with slots:
                return await self._first(batch)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(batch)) for batch in batches]
        return [answer for task in tasks for answer in task.result()]

    async def _first(self, batch: Batch) -> list[Answer]:
        if self._spare < 0:
            return []
        try:
            return [await self._ask(batch)]
        except (NoAnswerError, MalformedError) as error:
            # With nothing of ours beside it: what ends the server, or fills its memory, may be another batch.
            async with self._alone:
                return await self._again(batch, error)

    async def _again(self, batch: Batch, error: NoAnswerError | MalformedError) -> list[Answer]:
        for _ in range(TRIES):
            if self._spare < 0 or not _by_server(error):
                break
            await asyncio.sleep(PAUSE_S)
            await self.ready()
            try:
                return [await self._ask(batch)]
            except (NoAnswerError, MalformedError) as another:
                error = another
        if self._spare < 0:
            return []
        if batch.rows == 1:
            self._spare -= 1
            return [Answer(batch.first, 1, {}, refused=_words(error), by_server=_by_server(error))]
        middle = batch.rows // 2
        return [
            answer
            for half in (batch.cut(0, middle), batch.cut(middle, batch.rows))
            for answer in await self._half(half)
        ]

    async def _half(self, batch: Batch) -> list[Answer]:
        if self._spare < 0:
            return []
        try:
            return [await self._ask(batch)]
        except (NoAnswerError, MalformedError) as error:
            return await self._again(batch, error)

    async def _ask(self, batch: Batch) -> Answer:
        _, outputs = await self._model.infer(f"{self._name}-{batch.first}", batch.inputs)
        for each in outputs:
            if len(each.array.shape) == 0 or len(each.array) != batch.rows:
                raise NoAnswerError(
                    FaultOrigin.UNCLEAR,
                    f"output {each.name!r} has shape {list(each.array.shape)} for {batch.rows} rows",
                )
        return Answer(batch.first, batch.rows, {each.name: each.array for each in outputs})


def _by_server(error: NoAnswerError | MalformedError) -> bool:
    return isinstance(error, NoAnswerError) and error.fault is not FaultOrigin.MESSAGE


def _words(error: NoAnswerError | MalformedError) -> str:
    if isinstance(error, NoAnswerError) and error.fault is FaultOrigin.SERVER:
        return f"the server was gone each of {TRIES + 1} times it was asked, last alone: {error.message}"
    return error.message if isinstance(error, NoAnswerError) else str(error)

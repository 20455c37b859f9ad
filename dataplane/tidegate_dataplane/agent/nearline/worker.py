"""One stream, one model: messages are pulled, asked by deadline, answered into the store, and only then acknowledged."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import structlog

from tidegate_dataplane.agent.metrics import Metrics
from tidegate_dataplane.agent.nats_server import NatsError
from tidegate_dataplane.agent.nearline.broker import FETCH_S, Broker, TooLargeError
from tidegate_dataplane.agent.nearline.message import (
    DeadlinePlace,
    MalformedError,
    Origin,
    Request,
    Tensor,
    parse,
    result,
)
from tidegate_dataplane.agent.nearline.model import Model, NoAnswerError
from tidegate_dataplane.agent.nearline.verdict import (
    Dead,
    DeadReason,
    Fault,
    after_failure,
    is_suspect,
    is_unfinished,
)
from tidegate_dataplane.agent.nearline.window import Delivery, Window
from tidegate_dataplane.contract import StreamOrder

if TYPE_CHECKING:
    from nats.aio.msg import Msg

log = structlog.get_logger()

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
NOT_READY_PAUSE_S: Final = 0.2
"""How often a model that is not there is looked for."""
UNBURIED_PAUSE_S: Final = 5.0
"""How long a message waits that the dead letters would not take."""
COUNT_EVERY_S: Final = 2.0
YIELD_S: Final = 2.5
"""How long a message that is being asked may go on when the pod is to yield; then it is given back."""
LONGEST_END_S: Final = FETCH_S + YIELD_S + 0.5
"""After so long what is still held is left to be delivered again by itself."""


class Worker:
    """Works until it is finished; whatever the broker or the model does, it goes on when they do."""

    def __init__(
        self,
        order: StreamOrder,
        origin: Origin,
        broker: Broker,
        model: Model,
        ready: Callable[[], Awaitable[bool]],
        metrics: Metrics,
        *,
        at_once: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`ready` says whether the model answers; `at_once` messages are asked of it side by side."""
        self._order = order
        self._origin = origin
        self._broker = broker
        self._model = model
        self._ready = ready
        self._metrics = metrics
        self._at_once = at_once
        self._clock = clock
        self._window = Window(order.max_in_flight)
        self._ending = asyncio.Event()
        self._asking, self._busy_since = 0, 0.0
        self._at_work = self._unburied = False
        self.problem: NatsError | None = None
        self.consuming = False
        self._task = asyncio.create_task(self._run(), name="nearline")

    async def finish(self) -> None:
        """Yield: pull nothing more, finish what is being asked, and give the rest back; within FETCH_S + YIELD_S."""
        self._ending.set()
        self._window.wake()
        if self._at_work:
            await asyncio.wait([self._task], timeout=LONGEST_END_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._broker.close()
        await self._model.close()

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._ending.is_set():
            started = self._clock()
            try:
                await self._broker.open()
                self._opened()
                await self._consume()
            except NatsError as error:
                self._trouble(error)
            except Exception as error:  # whatever a library raises, the stream goes on when it can
                log.exception("nearline_crashed")
                said = f"the worker failed with {type(error).__name__}: report it, with the agent's log"
                self._trouble(NatsError(said, refused=False))
            pause_s = FIRST_PAUSE_S if self._clock() - started > LONGEST_PAUSE_S else pause_s * 2
            pause_s = min(pause_s, LONGEST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._ending.wait()

    async def _consume(self) -> None:
        """Work until the broker fails or the worker ends; what is held then is delivered again, here or elsewhere."""
        self._window = Window(self._order.max_in_flight)
        self._at_work = True
        askers: list[asyncio.Task[None]] = []
        try:
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(part()) for part in (self._keep_hold, self._count)]
                askers = [group.create_task(self._ask_on()) for _ in range(self._at_once)]
                await self._pull()
                await self._yield(askers)
                for task in others:
                    task.cancel()
        except ExceptionGroup as group_error:
            # The first says why; what came after it is the same connection.
            raise group_error.exceptions[0] from None
        finally:
            self._at_work = False
            self._metrics.nearline_in_flight.set(0)

    async def _pull(self) -> None:
        """Fetch what there is room for, and only while the model answers."""
        least_room = max(1, self._order.max_in_flight // 4)
        while not self._ending.is_set():
            room = self._window.room
            if room < least_room:
                await self._window.change()
            elif not await self._ready():
                await asyncio.sleep(NOT_READY_PAUSE_S)
            else:
                messages = await self._broker.fetch(room)
                deliveries = await asyncio.to_thread(self._deliveries, messages)
                self._metrics.nearline_messages.inc(len(deliveries))
                self._metrics.nearline_redelivered.inc(sum(each.delivered > 1 for each in deliveries))
                self._window.put(deliveries)
                self._show()

    async def _yield(self, askers: list[asyncio.Task[None]]) -> None:
        for delivery in self._window.close():
            await self._give_back(delivery, 0)
        _, late = await asyncio.wait(askers, timeout=YIELD_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        for delivery in self._window.held:
            await self._give_back(delivery, 0)

    async def _keep_hold(self) -> None:
        """Tell the broker of everything that is held, so that it is given to nobody else."""
        while True:
            await asyncio.sleep(self._broker.ack_wait_s / 3)
            for delivery in self._window.held:
                await self._broker.hold(delivery.handle)

    async def _count(self) -> None:
        while True:
            self._metrics.nearline_backlog.set(await self._broker.backlog())
            await asyncio.sleep(COUNT_EVERY_S)

    async def _ask_on(self) -> None:
        while (delivery := await self._window.take()) is not None:
            await self._deal_with(delivery)
            self._window.settled(delivery)
            self._show()

    async def _deal_with(self, delivery: Delivery) -> None:
        """Bring one message to its end: a result, a dead letter, or back to the stream."""
        request, most = delivery.request, self._order.max_deliveries
        if isinstance(request, MalformedError):
            await self._bury(delivery, Dead(DeadReason.MALFORMED, str(request)))
        elif await self._broker.has_result(request.id):
            self._metrics.nearline_duplicates.inc()
            await self._broker.settle(delivery.handle)
        elif request.deadline_s is not None and request.deadline_s < self._clock():
            past_s = self._clock() - request.deadline_s
            await self._bury(
                delivery, Dead(DeadReason.DEADLINE_PASSED, f"its deadline was {past_s:.1f} s ago")
            )
        elif is_unfinished(delivery.delivered, most):
            said = f"{delivery.delivered} deliveries, the last ones alone, ended without answer or failure"
            await self._bury(delivery, Dead(DeadReason.UNFINISHED, said))
        else:
            await self._answer(delivery, request)

    async def _answer(self, delivery: Delivery, request: Request) -> None:
        try:
            version, outputs = await self._ask(request)
            await self._keep(delivery, request, version, outputs)
        except NoAnswerError as error:
            what = after_failure(error.fault, error.said, delivery.delivered, self._order.max_deliveries)
            if isinstance(what, Dead):
                await self._bury(delivery, what)
            else:
                if error.fault is not Fault.SERVER:
                    log.info("message_failed", id=request.id, said=error.said, delivered=delivery.delivered)
                await self._give_back(delivery, what.after_s)
        except (TooLargeError, MalformedError) as error:
            await self._bury(delivery, Dead(DeadReason.RESULT_TOO_LARGE, str(error)))

    async def _ask(self, request: Request) -> tuple[str, tuple[Tensor, ...]]:
        if self._asking == 0:
            self._busy_since = time.monotonic()
        self._asking += 1
        try:
            return await self._model.ask(request.id, request.inputs)
        finally:
            self._asking -= 1
            if self._asking == 0:
                self._metrics.nearline_busy_seconds.inc(time.monotonic() - self._busy_since)

    async def _keep(
        self, delivery: Delivery, request: Request, version: str, outputs: tuple[Tensor, ...]
    ) -> None:
        at = datetime.fromtimestamp(self._clock(), UTC)
        content = await asyncio.to_thread(result, request, outputs, version, self._origin, at=at)
        if await self._broker.keep_result(request.id, content):
            self._metrics.nearline_results.inc()
            if request.deadline_s is not None and at.timestamp() > request.deadline_s:
                self._metrics.nearline_late.inc()
        else:
            self._metrics.nearline_duplicates.inc()
        await self._broker.settle(delivery.handle)
        if not self._unburied:
            self._well()

    async def _bury(self, delivery: Delivery, why: Dead) -> None:
        """To the dead letters, and only then acknowledged; where they take nothing, the message comes again."""
        try:
            await self._broker.bury(delivery.handle, why)
        except NatsError as error:
            if not error.refused:
                raise
            self._unburied = True
            self._trouble(error)
            await self._give_back(delivery, UNBURIED_PAUSE_S)
            return
        self._unburied = False
        self._well()
        self._metrics.nearline_dead_letters.labels(why.reason).inc()
        log.info("dead_letter", sequence=delivery.sequence, reason=why.reason, message=why.message)
        await self._broker.settle(delivery.handle)

    async def _give_back(self, delivery: Delivery, after_s: float) -> None:
        self._metrics.nearline_returned.inc()
        await self._broker.give_back(delivery.handle, after_s)

    def _deliveries(self, messages: "Sequence[Msg]") -> list[Delivery]:
        return [self._delivery(one) for one in messages]

    def _delivery(self, handle: "Msg") -> Delivery:
        metadata, request = handle.metadata, self._request(handle)
        delivered = int(metadata.num_delivered)
        suspect = is_suspect(delivered, self._order.max_deliveries)
        return Delivery(handle, int(metadata.sequence.stream), delivered, request, suspect)

    def _request(self, message: "Msg") -> Request | MalformedError:
        place = DeadlinePlace(self._order.deadline_header, self._order.deadline_field)
        try:
            return parse(message.data, message.headers or {}, place)
        except MalformedError as error:
            return error

    def _opened(self) -> None:
        self.consuming = True
        if not self._unburied:
            self._well()
        log.info("stream_opened", stream=self._order.stream, consumer=self._order.consumer)

    def _well(self) -> None:
        self.problem = None
        self._metrics.nearline_consuming.set(1)

    def _trouble(self, error: NatsError) -> None:
        if self.problem is None or self.problem.message != error.message:
            log.warning("stream_trouble", message=error.message)
        self.problem = error
        self._metrics.nearline_consuming.set(0)

    def _show(self) -> None:
        self._metrics.nearline_in_flight.set(len(self._window.held))

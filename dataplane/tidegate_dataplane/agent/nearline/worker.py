"""Worker of one stream and one model: pull, ask by deadline, store the result, and only then acknowledge."""

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import structlog

from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.nearline.broker import (
    FETCH_S,
    Backlog,
    Broker,
    ResultTooLargeError,
    StreamMessage,
)
from tidegate_dataplane.agent.nearline.failure_policy import (
    DeadLetter,
    DeadReason,
    FaultOrigin,
    is_suspect,
    is_unfinished,
    judge_failure,
)
from tidegate_dataplane.agent.nearline.features import FeatureClient
from tidegate_dataplane.agent.nearline.message import (
    DeadlineField,
    InferenceRequest,
    InferenceTensor,
    MalformedError,
    ResultOrigin,
    parse_message,
    render_result,
)
from tidegate_dataplane.agent.nearline.model import AnsweringModel, NoAnswerError
from tidegate_dataplane.agent.nearline.tasks import cancel_tasks
from tidegate_dataplane.agent.nearline.window import Delivery, DeliveryWindow
from tidegate_dataplane.contract import StreamCount, StreamOrder
from tidegate_dataplane.contract.base import fit_count

log = structlog.get_logger()

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 5.0
NOT_READY_PAUSE_S: Final = 0.2
"""Pause between two checks of a model that is not ready."""
NOT_READY_LIMIT_S: Final = 5.0
"""After this time without a ready model the pod reports that it does not consume; a shorter gap is a change of versions."""
DEAD_LETTER_PAUSE_S: Final = 30.0
"""Pause before a message is delivered again whose dead letter was refused."""
MAX_RESULT_PAUSE_S: Final = 60.0
"""Longest pause between two attempts, each with one message, while the bucket refuses results."""
GIVE_BACK_WITHIN_S: Final = 1.0
"""Limit for giving back the deliveries of a failed session."""
MAX_TRACKED_LOSSES: Final = 1_000
"""Messages for which losses of the server are counted; a pod has one or two of them at a time."""
COUNT_EVERY_S: Final = 2.0
YIELD_S: Final = 2.5
"""Limit for requests in flight when the pod stops consuming; then their messages are given back."""
LONGEST_END_S: Final = FETCH_S + YIELD_S + 0.5
"""Limit for the end of a worker; the broker then delivers the remaining messages again."""


class StreamWorker:
    """Works until it is finished, through failures of the broker and of the model."""

    def __init__(
        self,
        order: StreamOrder,
        origin: ResultOrigin,
        broker: Broker,
        model: AnsweringModel,
        is_ready: Callable[[], Awaitable[bool]],
        metrics: AgentMetrics,
        *,
        at_once: int,
        features: FeatureClient | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Start the worker; it asks the model `at_once` messages side by side while the readiness check returns True.

        `features` computes the features that `model` adds to messages; nothing is fetched while it cannot.
        """
        self._order = order
        self._origin = origin
        self._broker = broker
        self._model = model
        self._features = features
        self._is_ready = is_ready
        self._metrics = metrics
        self._at_once = at_once
        self._clock = clock
        self._window = DeliveryWindow(order.max_in_flight)
        self._ending = asyncio.Event()
        self._requests_in_flight, self._busy_since = 0, 0.0
        self._session_active = self._dead_letters_refused = self._results_refused = False
        self._pause_s, self._ready_at = FIRST_PAUSE_S, -math.inf
        self._losses_alone: dict[int, int] = {}
        self._backlog: tuple[float, Backlog] | None = None
        self.problem: BrokerError | None = None
        self.consuming = False
        self._task = asyncio.create_task(self._run_sessions(), name="nearline")

    @property
    def stream_count(self) -> StreamCount | None:
        """Return the broker's last count of messages; None before the first."""
        if self._backlog is None:
            return None
        measured_at, backlog = self._backlog
        unsettled = backlog.pending + backlog.unacknowledged
        return StreamCount(unsettled=unsettled, arrived=backlog.arrived, age_s=time.monotonic() - measured_at)

    @property
    def features_problem(self) -> str:
        """Return why the features of messages cannot be computed now; empty if they can."""
        return self._features.problem if self._features is not None else ""

    @property
    def _features_fail(self) -> bool:
        return self._features is not None and self._features.is_failing

    async def finish(self) -> None:
        """Stop pulling, finish what is in flight, and give the rest back; within FETCH_S + YIELD_S.

        A worker that hangs is cancelled some seconds later, and the broker delivers again what it held.
        """
        self._ending.set()
        self._window.wake_waiters()
        if self._session_active:
            await asyncio.wait([self._task], timeout=LONGEST_END_S)
        await cancel_tasks([self._task])
        self.consuming = False
        for gauge in (
            self._metrics.nearline_consuming,
            self._metrics.nearline_in_flight,
            self._metrics.nearline_backlog,
        ):
            gauge.set(0)
        await self._broker.close()
        await self._model.close_connection()

    async def _run_sessions(self) -> None:
        while not self._ending.is_set():
            started = self._clock()
            try:
                await self._broker.open()
                self._note_session_opened()
                await self._consume_stream()
            except BrokerError as error:
                self._set_problem(error)
            except Exception as error:  # whatever a library raises, the stream goes on when it can
                log.exception("nearline_crashed")
                message = f"the worker failed with {type(error).__name__}: report it, with the agent's log"
                self._set_problem(BrokerError(message, refused=False))
            if self._results_refused:
                self._pause_s = min(self._pause_s * 2, MAX_RESULT_PAUSE_S)
            elif self._clock() - started > LONGEST_PAUSE_S:
                self._pause_s = FIRST_PAUSE_S
            else:
                self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._ending.wait()

    async def _consume_stream(self) -> None:
        """Work until the broker fails or the worker ends; unsettled messages are delivered again, here or elsewhere."""
        window = self._window = DeliveryWindow(self._order.max_in_flight)
        self._session_active = True
        askers = [asyncio.create_task(self._process_deliveries(window)) for _ in range(self._at_once)]
        background = [
            asyncio.create_task(part(window))
            for part in (self._pull_messages, self._renew_holds, self._refresh_backlog)
        ]
        tasks = (*background, *askers)
        try:
            # No TaskGroup: it cancels once, and then waits for ever for a task that has missed it.
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if task.cancelled():
                    raise RuntimeError("a part of the worker was cancelled, and not by it")
                task.result()
            await self._yield_messages(window, askers)
        except Exception:
            rest = window.close()
            await cancel_tasks(tasks)
            await self._return_all((*rest, *window.open_deliveries))
            raise
        finally:
            # Close first: a task that misses the cancellation gets no more deliveries.
            window.close()
            for task in tasks:
                task.cancel()
            self._session_active = False
            self._metrics.nearline_in_flight.set(0)
            await cancel_tasks(tasks)

    async def _pull_messages(self, window: DeliveryWindow) -> None:
        """Fetch as many messages as fit, and only while the model answers."""
        while not self._ending.is_set() and not window.is_closed:
            count = self._fetch_count(window)
            if count == 0:
                await window.wait_for_change()
            elif not await self._model_is_ready():
                await asyncio.sleep(NOT_READY_PAUSE_S)
            else:
                messages = await self._broker.fetch_messages(count)
                deliveries = await asyncio.to_thread(self._make_deliveries, messages)
                self._metrics.nearline_messages.inc(len(deliveries))
                self._metrics.nearline_redelivered.inc(
                    sum(delivery.delivery_count > 1 for delivery in deliveries)
                )
                window.put(deliveries)
                self._update_gauges()

    def _fetch_count(self, window: DeliveryWindow) -> int:
        """Return how many messages to fetch; one at a time tests a bucket that refuses results, and features that fail."""
        if self._results_refused or self._features_fail:
            return 0 if window.open_deliveries else 1
        return window.free_slots if window.free_slots >= max(1, self._order.max_in_flight // 4) else 0

    async def _model_is_ready(self) -> bool:
        ready, now = await self._is_ready() and await self._features_are_ready(), time.monotonic()
        if ready:
            self._ready_at = now
        self.consuming = now - self._ready_at < NOT_READY_LIMIT_S
        self._metrics.nearline_consuming.set(self.consuming and self.problem is None)
        return ready

    async def _features_are_ready(self) -> bool:
        """Return whether features can be computed: no message is fetched meanwhile, so that its deliveries do not count."""
        return self._features is None or await self._features.is_ready()

    async def _yield_messages(self, window: DeliveryWindow, askers: list[asyncio.Task[None]]) -> None:
        for delivery in window.close():
            await self._give_back(delivery, 0)
        _, late = await asyncio.wait(askers, timeout=YIELD_S)
        await cancel_tasks(late)
        for delivery in window.open_deliveries:
            await self._give_back(delivery, 0)

    async def _return_all(self, deliveries: Sequence[Delivery]) -> None:
        """Give back the deliveries of a failed session; those that cannot be given back come again by themselves."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVE_BACK_WITHIN_S):
                for delivery in deliveries:
                    with contextlib.suppress(
                        BrokerError
                    ):  # the connection is gone, or it was settled just now
                        await self._give_back(delivery, self._pause_s)

    async def _renew_holds(self, window: DeliveryWindow) -> None:
        """Renew the holds of all deliveries, so that the broker gives them to no other pod."""
        while not window.is_closed or window.open_deliveries:
            await asyncio.sleep(self._broker.hold_interval_s)
            for delivery in window.open_deliveries:
                await self._broker.renew_hold(delivery.message)

    async def _refresh_backlog(self, window: DeliveryWindow) -> None:
        while not window.is_closed:
            with contextlib.suppress(BrokerError):  # a figure that is late ends no work
                counts = await self._broker.count_backlog()
                backlog = Backlog(*map(fit_count, (counts.pending, counts.unacknowledged, counts.arrived)))
                self._backlog = time.monotonic(), backlog
                self._metrics.nearline_backlog.set(backlog.pending)
            await asyncio.sleep(COUNT_EVERY_S)

    async def _process_deliveries(self, window: DeliveryWindow) -> None:
        while (delivery := await window.take()) is not None:
            await self._process_delivery(delivery)
            window.release(delivery)
            self._update_gauges()

    async def _process_delivery(self, delivery: Delivery) -> None:
        """Process one delivery to its end: a result, a dead letter, or back to the stream."""
        request, max_deliveries = delivery.request, self._order.max_deliveries
        if not self._broker.is_ours(delivery.message):
            return  # the pod that has it now processes it
        if isinstance(request, MalformedError):
            await self._publish_dead_letter(delivery, DeadLetter(DeadReason.MALFORMED, str(request)))
        elif await self._broker.has_result(request.id):
            self._metrics.nearline_duplicates.inc()
            await self._settle_delivery(delivery)
        elif request.deadline_s is not None and request.deadline_s < self._clock():
            past_s = self._clock() - request.deadline_s
            await self._publish_dead_letter(
                delivery, DeadLetter(DeadReason.DEADLINE_PASSED, f"its deadline was {past_s:.1f} s ago")
            )
        elif is_unfinished(delivery.delivery_count, max_deliveries) and not (
            self._results_refused or self._features_fail
        ):
            detail = (
                f"{delivery.delivery_count} deliveries, the last ones alone, ended without answer or failure"
            )
            await self._publish_dead_letter(delivery, DeadLetter(DeadReason.UNFINISHED, detail))
        else:
            await self._answer_request(delivery, request)

    async def _answer_request(self, delivery: Delivery, request: InferenceRequest) -> None:
        try:
            version, outputs = await self._ask_model(request)
            await self._keep_result(delivery, request, version, outputs)
        except NoAnswerError as error:
            ends = self._count_server_loss(delivery) if error.fault is FaultOrigin.SERVER else 0
            verdict = judge_failure(
                error.fault, error.message, delivery.delivery_count, self._order.max_deliveries, ends
            )
            if isinstance(verdict, DeadLetter):
                await self._publish_dead_letter(delivery, verdict)
            else:
                if error.fault not in (FaultOrigin.SERVER, FaultOrigin.FEATURES):
                    log.info(
                        "message_failed",
                        id=request.id,
                        error=error.message,
                        delivered=delivery.delivery_count,
                    )
                await self._give_back(delivery, verdict.after_s)
        except ResultTooLargeError as error:
            await self._publish_dead_letter(delivery, DeadLetter(DeadReason.RESULT_TOO_LARGE, str(error)))
        except MalformedError as error:
            await self._publish_dead_letter(delivery, DeadLetter(DeadReason.MALFORMED, str(error)))

    def _count_server_loss(self, delivery: Delivery) -> int:
        """Return how often the server was lost while this message was processed alone, now included."""
        if not delivery.suspect:
            return 0
        if len(self._losses_alone) >= MAX_TRACKED_LOSSES:
            self._losses_alone.clear()
        self._losses_alone[delivery.sequence] = self._losses_alone.get(delivery.sequence, 0) + 1
        return self._losses_alone[delivery.sequence]

    async def _ask_model(self, request: InferenceRequest) -> tuple[str, tuple[InferenceTensor, ...]]:
        if self._requests_in_flight == 0:
            self._busy_since = time.monotonic()
        self._requests_in_flight += 1
        try:
            return await self._model.infer_outputs(request.id, request.inputs)
        finally:
            self._requests_in_flight -= 1
            if self._requests_in_flight == 0:
                self._metrics.nearline_busy_seconds.inc(time.monotonic() - self._busy_since)

    async def _keep_result(
        self,
        delivery: Delivery,
        request: InferenceRequest,
        version: str,
        outputs: tuple[InferenceTensor, ...],
    ) -> None:
        made_at = datetime.fromtimestamp(self._clock(), UTC)
        try:
            content = await asyncio.to_thread(
                render_result, request, outputs, version, self._origin, made_at=made_at
            )
        except MalformedError as error:
            raise ResultTooLargeError(str(error)) from error
        try:
            is_new = await self._broker.keep_result(request.id, content)
        except BrokerError as error:
            self._results_refused = self._results_refused or error.refused
            raise
        self._results_refused = False
        if is_new:
            self._metrics.nearline_results.inc()
            if request.deadline_s is not None and made_at.timestamp() > request.deadline_s:
                self._metrics.nearline_late.inc()
        else:
            self._metrics.nearline_duplicates.inc()
        await self._settle_delivery(delivery)
        if not self._dead_letters_refused:
            self._clear_problem()

    async def _publish_dead_letter(self, delivery: Delivery, verdict: DeadLetter) -> None:
        """Publish a dead letter and then acknowledge; if it is refused, give the message back."""
        if not self._broker.is_ours(delivery.message):
            return
        try:
            await self._broker.publish_dead_letter(delivery.message, verdict)
        except BrokerError as error:
            if not error.refused:
                raise
            self._dead_letters_refused = True
            self._set_problem(error)
            await self._give_back(delivery, DEAD_LETTER_PAUSE_S)
            return
        self._dead_letters_refused = False
        if not self._results_refused:
            self._clear_problem()
        self._metrics.nearline_dead_letters.labels(verdict.reason).inc()
        log.info("dead_letter", sequence=delivery.sequence, reason=verdict.reason, message=verdict.message)
        await self._settle_delivery(delivery)

    async def _settle_delivery(self, delivery: Delivery) -> None:
        await self._broker.settle(delivery.message)
        self._losses_alone.pop(delivery.sequence, None)

    async def _give_back(self, delivery: Delivery, after_s: float) -> None:
        await self._broker.give_back(delivery.message, after_s)
        self._metrics.nearline_returned.inc()

    def _make_deliveries(self, messages: Sequence[StreamMessage]) -> list[Delivery]:
        return [self._make_delivery(message) for message in messages]

    def _make_delivery(self, message: StreamMessage) -> Delivery:
        suspect = is_suspect(message.delivery_count, self._order.max_deliveries)
        return Delivery(message, self._parse_request(message), suspect)

    def _parse_request(self, message: StreamMessage) -> InferenceRequest | MalformedError:
        place = DeadlineField(self._order.deadline_header, self._order.deadline_field)
        try:
            return parse_message(message.body, message.headers, place, self._broker.id_header)
        except MalformedError as error:
            return error

    def _note_session_opened(self) -> None:
        """Clear the problem after a session has opened.

        Opening checks the destination of dead letters; only a result shows whether the bucket accepts results.
        """
        self._dead_letters_refused = False
        if not self._results_refused:
            self._clear_problem()
        kafka = self._order.kafka
        log.info("stream_opened", stream=kafka.topic if kafka is not None else self._order.stream)

    def _clear_problem(self) -> None:
        self.problem = None
        self._metrics.nearline_consuming.set(self.consuming)

    def _set_problem(self, error: BrokerError) -> None:
        if self.problem is None or self.problem.message != error.message:
            log.warning("stream_trouble", message=error.message)
        self.problem = error
        self._metrics.nearline_consuming.set(0)

    def _update_gauges(self) -> None:
        self._metrics.nearline_in_flight.set(len(self._window.open_deliveries))

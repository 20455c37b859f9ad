"""One sink and the buffer before it: written records are counted, others are retried or dropped."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import structlog

from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.samples.buffer import BufferedRecord, SampleBuffer
from tidegate_dataplane.agent.samples.sink import RecordSink, SinkError, WriteOutcome
from tidegate_dataplane.contract import SampleProblem
from tidegate_dataplane.sampling.frames import DropReason, SampleRecord

log = structlog.get_logger()

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
FAILED_OUTCOMES = frozenset({WriteOutcome.RETRY, WriteOutcome.UNCONFIRMED})
DROP_REASONS = {
    WriteOutcome.TOO_LARGE: DropReason.TOO_LARGE,
    WriteOutcome.UNCONFIRMED: DropReason.UNCONFIRMED,
}


class SampleOutlet:
    """Writes to one sink until it is finished."""

    def __init__(
        self,
        sink: RecordSink,
        buffer: SampleBuffer,
        metrics: AgentMetrics,
        count_dropped: Callable[[DropReason], None],
    ) -> None:
        self._sink = sink
        self._buffer = buffer
        self._metrics = metrics
        self._count_dropped = count_dropped
        self._ending = asyncio.Event()
        self._portion: Sequence[BufferedRecord] = ()
        self.problem: SinkError | None = None
        self._task = asyncio.create_task(self._run_writer(), name="samples")

    def offer_record(self, record: SampleRecord, size: int, settle: Callable[[], None]) -> DropReason | None:
        """Buffer a record, or return why it does not fit."""
        if self._buffer.offer_record(record, size, settle):
            self._update_gauges()
            return None
        return DropReason.BUFFER_FULL if self.problem is None else DropReason.SINK_DOWN

    async def finish(self, limit_s: float) -> None:
        """Write the buffered records, and count those that cannot be written in time as dropped."""
        self._buffer.close()
        self._ending.set()
        await asyncio.wait([self._task], timeout=limit_s)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for buffered in (*self._portion, *self._buffer.take_rest()):
            self._drop_record(buffered, DropReason.SINK_DOWN)
        await self._sink.close()

    async def _run_writer(self) -> None:
        while portion := await self._buffer.take_portion(self._sink.portion):
            await self._write_portion(portion)

    async def _write_portion(self, portion: Sequence[BufferedRecord]) -> None:
        self._portion = portion
        pause_s = FIRST_PAUSE_S
        while self._portion:
            fates = await self._try_write(self._portion)
            if fates is None:
                await self._wait_before_retry(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                continue
            pairs = list(zip(self._portion, fates, strict=True))
            self._portion = [buffered for buffered, fate in pairs if fate is WriteOutcome.RETRY]
            for buffered, fate in pairs:
                self._settle_record(buffered, fate)

    async def _try_write(self, portion: Sequence[BufferedRecord]) -> Sequence[WriteOutcome] | None:
        try:
            fates = await self._sink.write(portion)
        except SinkError as error:
            self._set_problem(error)
            return None
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the log goes on when it can
            message = f"the sink failed with {type(error).__name__}: report it, with the agent's log"
            self._set_problem(SinkError(SampleProblem.SINK_UNREACHABLE, message))
            return None
        # A record that was given up does not show that the sink works again.
        if self.problem is not None and not FAILED_OUTCOMES.issuperset(fates):
            log.info("samples_written_again")
            self.problem = None
        return fates

    def _set_problem(self, error: SinkError) -> None:
        if self.problem is None or self.problem.message != error.message:
            log.warning("samples_not_written", problem=error.problem, message=error.message)
        self.problem = error

    async def _wait_before_retry(self, pause_s: float) -> None:
        if self._ending.is_set():
            await asyncio.sleep(FIRST_PAUSE_S)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._ending.wait()

    def _settle_record(self, buffered: BufferedRecord, fate: WriteOutcome) -> None:
        match fate:
            case WriteOutcome.RETRY:
                return
            case WriteOutcome.WRITTEN:
                self._metrics.samples_written.inc()
            case WriteOutcome.DUPLICATE:
                self._metrics.samples_duplicate.inc()
            case _:
                self._count_dropped(DROP_REASONS[fate])
        self._buffer.release_record(buffered)
        self._update_gauges()

    def _drop_record(self, buffered: BufferedRecord, reason: DropReason) -> None:
        self._count_dropped(reason)
        self._buffer.release_record(buffered)
        self._update_gauges()

    def _update_gauges(self) -> None:
        self._metrics.samples_held.set(self._buffer.record_count)
        self._metrics.samples_held_bytes.set(self._buffer.byte_count)

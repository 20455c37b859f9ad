"""Sample log: it applies the order's `samples`, accepts records from runners, and reports its state."""

import asyncio
import time
from collections.abc import Callable

from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.runners import RunnerRegistry
from tidegate_dataplane.agent.samples.buffer import RecentIds, SampleBuffer
from tidegate_dataplane.agent.samples.lines import SampleOrigin
from tidegate_dataplane.agent.samples.outlet import SampleOutlet
from tidegate_dataplane.agent.samples.runner_socket import RunnerPeer, RunnerSocket
from tidegate_dataplane.agent.samples.sink import RecordSink, SinkError
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.contract import DesiredState, SampleOrder, SampleProblem, SampleReport
from tidegate_dataplane.sampling.frames import SOCKET_NAME, DropReason, SampleLosses, SampleRecord

OpenSink = Callable[[SampleOrder, SampleOrigin], RecordSink]

RECENTLY_S = 60.0
"""How long a dropped record shows in the report."""
UNSUPPORTED = (
    "the server runs ONNX models by a backend of its own, which logs no samples: remove spec.logging, or use a "
    "Triton image without the onnxruntime backend"
)


class SampleLog:
    """Sample log of one pod; its failures affect no requests, readiness or versions."""

    def __init__(
        self,
        settings: AgentSettings,
        metrics: AgentMetrics,
        open_sink: OpenSink,
        runners: RunnerRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._open_sink = open_sink
        self._clock = clock
        self._seen = RecentIds()
        self._order: SampleOrder | None = None
        self._origin = SampleOrigin("", settings.pod_name)
        self._outlet: SampleOutlet | None = None
        self._sink_error: SinkError | None = None
        self._finishing: set[asyncio.Task[None]] = set()
        self._dropped_s: float | None = None
        self._intake = RunnerSocket(
            settings.run_dir / SOCKET_NAME, lambda: self._sample_share, self._take_frame, runners
        )

    async def start(self) -> None:
        """Listen for runners."""
        await self._intake.start()

    def follow_order(self, order: DesiredState) -> None:
        """Apply the order: send runners a changed share, and open another sink if the order names one."""
        before, current, self._order = self._order, order.samples, order.samples
        if before is None or current is None or before.model_copy(update={"share": current.share}) != current:
            self._close_outlet()
            self._origin = SampleOrigin(order.owner, self._settings.pod_name)
            if current is not None:
                self._open_outlet(current)
        if before != current:
            self._intake.notify_runners()

    def report(self, *, native: bool) -> SampleReport | None:
        """Return the state of the log; None if the order has none. `native`: Triton's own backend runs the model."""
        if self._order is None:
            return None
        if native:
            return SampleReport(problem=SampleProblem.SAMPLING_UNSUPPORTED, message=UNSUPPORTED)
        problem = self._sink_error or (self._outlet.problem if self._outlet is not None else None)
        if problem is not None:
            return SampleReport(problem=problem.problem, message=problem.message)
        if self._dropped_s is not None and self._clock() - self._dropped_s < RECENTLY_S:
            message = (
                "samples were dropped within the last minute; tidegate_agent_samples_dropped_total of the pods says "
                "how many and why"
            )
            return SampleReport(problem=SampleProblem.SAMPLES_DROPPED, message=message)
        return SampleReport()

    async def finish_writing(self) -> None:
        """Write the buffered records within the configured time, and close the socket."""
        await self._intake.stop_reading()
        self._close_outlet()
        if self._finishing:
            await asyncio.wait(self._finishing)
        self._intake.close()

    @property
    def _sample_share(self) -> float:
        return self._order.share if self._order is not None and self._sink_error is None else 0.0

    def _open_outlet(self, order: SampleOrder) -> None:
        self._sink_error = None
        try:
            sink = self._open_sink(order, self._origin)
        except ArtefactError as error:
            self._sink_error = SinkError(SampleProblem.SINK_REFUSED, error.refusal.message)
            return
        buffer = SampleBuffer(self._settings.sample_buffer_bytes, self._clock)
        self._outlet = SampleOutlet(sink, buffer, self._metrics, self._count_dropped)

    def _close_outlet(self) -> None:
        outlet, self._outlet, self._sink_error = self._outlet, None, None
        if outlet is not None:
            task = asyncio.create_task(outlet.finish(self._settings.sample_finish_s))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)

    def _take_frame(self, frame: SampleRecord | SampleLosses, size: int, peer: RunnerPeer) -> None:
        if isinstance(frame, SampleLosses):
            for reason, count in frame.counts.items():
                self._metrics.samples.inc(count)
                self._count_dropped(DropReason(reason), count)
            return
        self._metrics.samples.inc()
        if frame.own_id and frame.id in self._seen:
            self._metrics.samples_duplicate.inc()
            peer.settle()
            return
        drop_reason = (
            DropReason.NOT_WANTED
            if self._outlet is None
            else self._outlet.offer_record(frame, size, peer.settle)
        )
        if drop_reason is not None:
            self._count_dropped(drop_reason)
            peer.settle()
        elif frame.own_id:
            self._seen.add(frame.id)

    def _count_dropped(self, reason: DropReason, count: int = 1) -> None:
        self._metrics.samples_dropped.labels(reason).inc(count)
        if count and reason is not DropReason.NOT_WANTED:
            self._dropped_s = self._clock()

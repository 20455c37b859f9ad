"""Run simulations for the dashboard and its API: off the event loop, one at a time, for a bounded time."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, Field

from tidegate.allocation.solver import Solver
from tidegate.api.durations import parse_duration
from tidegate.api.meta import DNS_LABEL, ObjectKey
from tidegate.api.what_if import DayWhatIf
from tidegate.errors import PermanentError, RetryableError, TidegateError
from tidegate.reports.next_hours import NextHoursReport
from tidegate.reports.simulation import SimulationReport
from tidegate.resources.names import POOL_LABEL, to_label_value
from tidegate.services.recorded_day import (
    RecordedObjects,
    RecordedSpan,
    make_recorded_objects,
    read_recording,
)
from tidegate.services.simulation import simulate_day
from tidegate.simulation.day import DayOptions
from tidegate.simulation.next_hours import STEP, plan_next_hours, select_largest
from tidegate.simulation.policies import FORECAST, PRESENT
from tidegate.telemetry.recorded_rates import PrometheusRecording
from tidegate.web.access.expiring_cache import ExpiringCache
from tidegate.web.caches import FleetCaches
from tidegate.web.charts import PROMETHEUS_SETTING

MAX_S: Final = 120.0
"""The longest time for reading rates, and the longest for simulating."""
_MAX_RATES: Final = 500_000
_TICK_S: Final = 0.5
NEXT_HOURS: Final = 4
_FORECAST_HISTORY: Final = timedelta(days=14)
_PRESENT: Final = timedelta(hours=1)
"""Time in which an Inference has a present rate, or is silent."""
_NEXT_HOURS_WAY_OUT: Final = (
    "wait until Prometheus or the dashboard has less to do, or use tidegate record and tidegate simulate"
)
_REMEMBERED_S: Final = 300.0
_PROBLEM_REMEMBERED_S: Final = 15.0
_REMEMBERED: Final = 64
_DAY: Final = timedelta(days=1)
_EARLIEST: Final = datetime(2000, 1, 1, tzinfo=UTC)
NO_HISTORY: Final = f"No Prometheus is configured, so there is no history to simulate: set {PROMETHEUS_SETTING} to one that scrapes the gateways."


class DayRequest(DayWhatIf):
    """A past time of a pool to simulate, and what is changed in it."""

    pool: Annotated[str, Field(pattern=f"^{DNS_LABEL}$", max_length=63)]
    end: Annotated[AwareDatetime | None, Field(ge=_EARLIEST, description="End of the time; absent: now.")] = (
        None
    )
    hours: Annotated[float, Field(ge=0.25, le=48, allow_inf_nan=False, description="Length of the time.")] = (
        24.0
    )
    history_days: Annotated[
        int,
        Field(ge=0, le=28, description="Days before it that forecasts and the fixed shares of static use."),
    ] = 7
    interval: Annotated[
        Literal["1m", "2m", "5m", "10m", "15m"], Field(description="Time between two decisions.")
    ] = "5m"
    policies: Annotated[
        tuple[Annotated[str, Field(max_length=32)], ...],
        Field(max_length=16, description="Policies to run; the oracle always runs."),
    ] = (FORECAST, PRESENT, "static")

    @property
    def day_changes(self) -> DayWhatIf:
        """Return what is changed."""
        return DayWhatIf.model_validate({name: getattr(self, name) for name in DayWhatIf.model_fields})

    @property
    def day_options(self) -> DayOptions:
        """Return what is simulated, without changes."""
        interval = parse_duration(self.interval)
        count = timedelta(hours=self.hours) // interval
        return DayOptions(last=count * interval, interval=interval, policies=self.policies)

    def find_span(self, now: datetime) -> RecordedSpan:
        """Return the time to read, in whole steps, so that the same question has the same answer."""
        interval = parse_duration(self.interval)
        end_s = min(self.end or now, now).timestamp() // interval.total_seconds() * interval.total_seconds()
        length = self.day_options.last + self.history_days * _DAY
        return RecordedSpan(datetime.fromtimestamp(end_s, UTC) - length, interval, length // interval)


@dataclass(frozen=True, slots=True)
class DayComparison:
    """A simulated time, and the same time as recorded; None if nothing was changed."""

    answer: SimulationReport
    recorded: SimulationReport | None

    @property
    def labelled_reports(self) -> list[tuple[str, SimulationReport]]:
        """Return the reports with their labels, for charts."""
        if self.recorded is None:
            return [("", self.answer)]
        return [("as recorded", self.recorded), ("with the changes", self.answer)]


class SimulationStoppedError(RetryableError):
    """The simulation took too long, or nobody waits for it any more."""


class SimulationRunner:
    """Runs one simulation at a time, in a thread."""

    def __init__(
        self,
        source: PrometheusRecording | None,
        fleet: FleetCaches,
        now: Callable[[], datetime],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        max_s: float = MAX_S,
    ) -> None:
        """`source` is None where no Prometheus is configured."""
        self._source = source
        self._fleet = fleet
        self._now = now
        self._max_s = max_s
        self._task: asyncio.Task[DayComparison] | None = None
        self._next_hours: ExpiringCache[str, NextHoursReport | TidegateError] = ExpiringCache(
            _REMEMBERED, monotonic
        )
        self._next_hours_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def history_problem(self) -> str:
        """Return why nothing can be simulated; empty if it can."""
        return NO_HISTORY if self._source is None else ""

    async def run_simulation(
        self, request: DayRequest, *, compare: bool
    ) -> AsyncGenerator[str | DayComparison]:
        """Yield what is being done, about twice a second, then the reports; with `compare` also that of the time as recorded.

        Ends the simulation when it is closed. Raises TidegateError that states the way out.
        """
        if self._source is None:
            raise PermanentError(NO_HISTORY)
        if self._task is not None and not self._task.done():
            message = "another simulation runs on this dashboard, the most allowed: try again in a minute"
            raise RetryableError(message)
        progress = _SimulationProgress(self._max_s, "choose fewer hours, fewer policies or a longer interval")
        objects = _read_objects(self._fleet, request.pool)
        span = request.find_span(self._now())
        _check_size(objects, span)
        task = asyncio.create_task(
            _read_and_simulate(self._source, objects, span, request, progress, compare=compare)
        )
        self._task = task
        task.add_done_callback(_retrieve_error)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_TICK_S)
                if not task.done():
                    yield progress.text
            yield task.result()
        finally:
            progress.stop_thread()
            task.cancel()

    async def plan_next_hours(self, pool: str) -> NextHoursReport:
        """Return the plan of the next hours, at most five minutes old. Raises TidegateError that states the way out."""
        if self._source is None:
            raise PermanentError(NO_HISTORY)
        answer = self._next_hours.get(pool)
        if answer is None:
            async with self._next_hours_locks[pool]:
                answer = self._next_hours.get(pool)
                if answer is None:
                    answer = await self._compute_next_hours(self._source, pool)
                    is_problem = isinstance(answer, TidegateError)
                    self._next_hours.put(pool, answer, _PROBLEM_REMEMBERED_S if is_problem else _REMEMBERED_S)
        if isinstance(answer, TidegateError):
            raise answer.with_traceback(None)
        return answer

    async def _compute_next_hours(
        self, source: PrometheusRecording, pool: str
    ) -> NextHoursReport | TidegateError:
        """Return the plan, or why there is none, which is remembered as well."""
        objects = _read_objects(self._fleet, pool)
        step_s = STEP.total_seconds()
        end = datetime.fromtimestamp(self._now().timestamp() // step_s * step_s, UTC)
        progress = _SimulationProgress(self._max_s, _NEXT_HOURS_WAY_OUT)
        try:
            async with _limit_reading(source, _NEXT_HOURS_WAY_OUT):
                recent = RecordedSpan(end - _PRESENT, STEP, _PRESENT // STEP)
                day = (await read_recording(source, objects, recent)).make_day()
                # Two weeks of all Inferences of a large pool would be too many rates.
                keys = frozenset(map(ObjectKey.parse, await asyncio.to_thread(select_largest, day)))
                begin, count = end - _FORECAST_HISTORY, _FORECAST_HISTORY // STEP
                rates = await source.read_rates(keys, begin, count, STEP) if keys else {}
            histories = {str(key): steps for key, steps in rates.items()}
            progress.start_clock()

            def plan_hours() -> NextHoursReport:
                solve = Solver(time.monotonic).solve
                return NextHoursReport.from_plan(
                    plan_next_hours(day, histories, NEXT_HOURS, solve, progress.report_step)
                )

            return await asyncio.to_thread(plan_hours)
        except TidegateError as error:
            return error
        except ValueError as error:
            return PermanentError(str(error))
        finally:
            progress.stop_thread()


class _SimulationProgress:
    """What a simulation does; the thread asks it at every step whether to go on."""

    def __init__(self, max_s: float, way_out: str) -> None:
        """`way_out` is what to do if it takes too long."""
        self._max_s = max_s
        self._way_out = way_out
        self._ends_s = 0.0
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._stopped = False
        self.text = "reading rates from Prometheus"
        self.run = ""

    def start_clock(self) -> None:
        """Start the time in which the simulation must end."""
        self._ends_s = self._clock() + self._max_s

    def stop_thread(self) -> None:
        """Let the thread end at its next step."""
        self._stopped = True

    def report_step(self, policy: str, share: float) -> None:
        """Note the share that is done. Raises SimulationStoppedError."""
        self.text = f"{self.run}{policy}: {100 * share:.0f} %"
        if self._stopped:
            raise SimulationStoppedError("the simulation was stopped")
        if self._clock() > self._ends_s:
            message = f"the simulation takes longer than {self._max_s:g} s: {self._way_out}"
            raise SimulationStoppedError(message)


@asynccontextmanager
async def _limit_reading(source: PrometheusRecording, way_out: str) -> AsyncGenerator[None]:
    """Raise RetryableError with a way out if reading takes too long."""
    try:
        async with asyncio.timeout(MAX_S):
            yield
    except TimeoutError as error:
        message = f"{source.name} has not answered within {MAX_S:g} s: {way_out}"
        raise RetryableError(message) from error


def _read_objects(fleet: FleetCaches, name: str) -> RecordedObjects:
    pool = fleet.pools.get(ObjectKey("", name))
    if pool is None:
        message = f"there is no ComputePool {name}"
        raise PermanentError(message)
    pods = fleet.pods.by_label(POOL_LABEL, to_label_value(name))
    return make_recorded_objects(pool, fleet.inferences.list_all(), pods, fleet.decisions.list_all())


def _check_size(objects: RecordedObjects, span: RecordedSpan) -> None:
    """Raise PermanentError for more rates than the dashboard has memory for."""
    rates = span.count * len(objects.inferences)
    if rates > _MAX_RATES:
        message = (
            f"{span.count:,} steps of {len(objects.inferences):,} Inferences are {rates:,} rates, more than {_MAX_RATES:,}: "
            "choose fewer days of history, fewer hours or a longer interval, or use tidegate record and tidegate simulate"
        )
        raise PermanentError(message)


async def _read_and_simulate(
    source: PrometheusRecording,
    objects: RecordedObjects,
    span: RecordedSpan,
    request: DayRequest,
    progress: _SimulationProgress,
    *,
    compare: bool,
) -> DayComparison:
    async with _limit_reading(source, "choose fewer days of history or a longer interval"):
        recording = await read_recording(source, objects, span)
    changes = request.day_changes
    changed = changes != DayWhatIf()

    def run_policies() -> DayComparison:
        day, options = recording.make_day(), request.day_options
        recorded: SimulationReport | None = None
        if compare and changed:
            progress.run = "as recorded, "
            recorded = simulate_day(day, options, _ignore_problem, progress.report_step)
            progress.run = "with the changes, "
        options = replace(options, changes=changes)
        return DayComparison(simulate_day(day, options, _ignore_problem, progress.report_step), recorded)

    progress.start_clock()
    thread = asyncio.create_task(asyncio.to_thread(run_policies))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        # The thread ends at its next step; until then another simulation would compete with it.
        await asyncio.wait({thread})
        _retrieve_error(thread)
        raise


def _ignore_problem(problem: str) -> None:
    """Do nothing: the page of the pool shows what cannot be read of its events."""


def _retrieve_error(task: asyncio.Task[DayComparison]) -> None:
    """Mark the error of a task as seen, so that asyncio does not log it when nobody waits."""
    if not task.cancelled():
        task.exception()

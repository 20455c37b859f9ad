"""The level-triggered loop: observe, plan, take one step, and report what is true."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

import structlog

from tidegate_dataplane.agent import state
from tidegate_dataplane.agent.artefacts.receive import DownloadProgress
from tidegate_dataplane.agent.artefacts.source import OpenSource
from tidegate_dataplane.agent.artefacts.table_convert import ConvertTable, convert_in_process
from tidegate_dataplane.agent.compile_store import CompileStore
from tidegate_dataplane.agent.config_text import ModelConfig, to_config_text
from tidegate_dataplane.agent.event_reports import EventReports
from tidegate_dataplane.agent.files import OrderCheckpoint
from tidegate_dataplane.agent.graph_switcher import GraphSwitcher, SwitchResult
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.refusals import VersionRefusal
from tidegate_dataplane.agent.report import CurrentStep, make_batching_report, make_report, served_model
from tidegate_dataplane.agent.repository import COMPILE_DIR, HOST_MODELS, ModelRepository
from tidegate_dataplane.agent.runners import RunnerRegistry
from tidegate_dataplane.agent.settings import AgentSettings, OnnxBackend
from tidegate_dataplane.agent.state import (
    AgentMemory,
    CleanUp,
    FetchArtefact,
    LoadTables,
    LoadVersions,
    ObservedPod,
    ServerState,
    SwitchGraph,
)
from tidegate_dataplane.agent.table_refresh import TableDelivery, TableRefresher
from tidegate_dataplane.agent.triton import ServerGoneError
from tidegate_dataplane.agent.version_install import VersionInstaller
from tidegate_dataplane.compiler.exchange import CompileFolder
from tidegate_dataplane.contract import (
    AgentReport,
    BatchingReport,
    CompileReport,
    DesiredState,
    EventStreamReport,
    FailureReason,
    ModelFormat,
    SampleReport,
    StreamReport,
)
from tidegate_dataplane.event_store import EVENTS_FOLDER

log = structlog.get_logger()

# While Triton starts, every moment counts.
STARTING_POLL_S = 0.2


class ModelServer(Protocol):
    """Interface of Triton that the loop needs."""

    async def observe(self, model: str | None) -> ServerState:
        """Return what is ready."""
        ...

    async def load_version(
        self, model: str, version: int, config: ModelConfig, *, timeout_s: float
    ) -> VersionRefusal | None:
        """Load what the configuration lists; return why the version is not ready afterwards, None if it is."""
        ...

    async def unload_model(self, model: str) -> None:
        """Unload every version of a model."""
        ...


class SampleConsumer(Protocol):
    """Interface of the sample log that the loop needs."""

    def follow_order(self, order: DesiredState) -> None:
        """Log samples according to the order."""
        ...

    def report(self, *, native: bool) -> SampleReport | None:
        """Return the state of the log; None if the order has none."""
        ...


class StreamConsumer(Protocol):
    """Interface of the near-line stream that the loop needs."""

    def follow_order(self, order: DesiredState) -> None:
        """Consume the stream of the order."""
        ...

    def report(self) -> StreamReport | None:
        """Return the state of the stream; None if the order has none."""
        ...


class Agent:
    """Works towards the newest order."""

    def __init__(
        self,
        settings: AgentSettings,
        server: ModelServer,
        repository: ModelRepository,
        checkpoint: OrderCheckpoint,
        open_source: OpenSource,
        metrics: AgentMetrics,
        clock: Callable[[], float] = time.monotonic,
        samples: SampleConsumer | None = None,
        runners: RunnerRegistry | None = None,
        stream: StreamConsumer | None = None,
        compile_store: CompileStore | None = None,
        convert: ConvertTable = convert_in_process,
    ) -> None:
        self._settings = settings
        self._samples = samples
        self._stream = stream
        self._compile_store = compile_store
        self._runners = runners
        self._server = server
        self._repository = repository
        self._checkpoint = checkpoint
        self._metrics = metrics
        self._event_reports = EventReports(
            settings.repository_dir.parent / EVENTS_FOLDER,
            settings.store_secret_dir,
            allow_loopback=settings.allow_loopback,
        )
        self._clock = clock
        self._changed = asyncio.Event()
        if runners is not None:
            runners.subscribe(self._changed.set)
        self._desired: DesiredState | None = None
        self._memory = AgentMemory(backend=settings.onnx_backend)
        self._observed = ObservedPod(ServerState(), {})
        self._current_step = CurrentStep()
        self._crashed_order: DesiredState | None = None
        self._installer = VersionInstaller(repository, open_source, convert, metrics, self._changed, clock)
        folder = CompileFolder(settings.cache_dir / COMPILE_DIR)
        self._graphs = GraphSwitcher(folder, repository, metrics, self._load_versions, clock)
        self.tables = TableRefresher(
            settings.pod_name,
            repository,
            TableDelivery(open_source, convert),
            metrics,
            self._load_versions,
            self._changed.set,
            clock,
        )

    def start_with(self, order: DesiredState | None) -> None:
        """Start with the newer order: the one in the pod's ConfigMap, or the one that an earlier agent accepted."""
        accepted, proven = self._checkpoint.read_orders()
        newest = order
        if accepted is not None and (order is None or accepted.epoch >= order.epoch):
            newest = accepted
        self._memory = AgentMemory(proven=proven, backend=self._settings.onnx_backend)
        self._desired = newest
        if newest is not None:
            self._follow_order(newest)

    def accept_order(self, order: DesiredState) -> bool:
        """Make `order` the one to work towards; return False if an older leader than the newest seen sent it."""
        current = self._desired
        if current is not None and order.epoch < current.epoch:
            return False
        self._checkpoint.save_orders(accepted=order)
        self._desired = order
        self._follow_order(order)
        if current is None or state.content_of(current) != state.content_of(order):
            log.info(
                "order_accepted",
                owner=order.owner,
                model=order.model,
                version=order.version,
                epoch=order.epoch,
            )
            self._memory = replace(self._memory, setbacks=())
            self._changed.set()
        return True

    def build_report(self) -> AgentReport:
        """Return the last observed state, compared with the newest order."""
        native = self._memory.backend is OnnxBackend.NATIVE
        report = make_report(
            self._settings.pod_name, self._desired, self._observed, self._memory, self._current_step
        )
        return report.model_copy(
            update={
                "compile": self._report_compilation(report.compile),
                "batching": self._report_batching(report.serving, native=native),
                "samples": self._samples.report(native=native) if self._samples is not None else None,
                "stream": self._stream.report() if self._stream is not None else None,
                "tables": self.tables.make_reports(),
                "ended": self._runners.report() if self._runners is not None else None,
            }
        )

    def _report_compilation(self, report: CompileReport | None) -> CompileReport | None:
        if report is None or self._compile_store is None or not self._compile_store.problem:
            return report
        return report.model_copy(update={"cache_problem": self._compile_store.problem})

    def _report_batching(self, version: int | None, *, native: bool) -> BatchingReport | None:
        model = self.served_model
        if model is None or version is None:
            return None
        limit = self._runners.find_join_limit(model, version) if self._runners is not None else None
        facts = self._observed.stored.get(model, {}).get(version)
        batched = facts is not None and facts.batched
        return make_batching_report(self._desired, version, limit, native=native, batched=batched)

    @property
    def served_model(self) -> str | None:
        """Return the model that answers in this pod; None before one does."""
        return served_model(self._desired, self._observed, self._memory)

    @property
    def served_models(self) -> Collection[str]:
        """Return the models that answer in this pod: at most one."""
        return () if self.served_model is None else (self.served_model,)

    def detach_runners(self) -> None:
        """Detach from what outlives the agent."""
        if self._runners is not None:
            self._runners.unsubscribe(self._changed.set)

    def _follow_order(self, order: DesiredState) -> None:
        """Apply the parts of the order that need no step of the loop."""
        self._metrics.target_version.set(order.version)
        if self._samples is not None:
            self._samples.follow_order(order)
        if self._stream is not None:
            self._stream.follow_order(order)
        if self._compile_store is not None:
            self._compile_store.follow_order(order)

    async def run(self) -> None:
        """Take steps until cancelled."""
        while True:
            took_step = await self.take_step()
            if not took_step:
                live = self._observed.server.live
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.poll_s if live else STARTING_POLL_S):
                        await self._changed.wait()

    async def take_step(self) -> bool:
        """Observe, plan and take one step; return whether there was one."""
        self._changed.clear()
        desired = self._desired
        await self._installer.restore_displaced(None if desired is None else state.content_of(desired))
        await self._observe_pod(desired)
        action = state.plan_step(
            desired,
            self._observed,
            self._memory,
            now_s=self._clock(),
            intra_op_threads=self._settings.intra_op_threads,
        )
        match action:
            case FetchArtefact():
                await self._fetch_artefact(action)
            case LoadVersions():
                await self._load_model(action)
            case SwitchGraph() | LoadTables():
                if not await self._reload_version(action):
                    self._current_step = CurrentStep()
                    return False
            case state.RefuseOrder(order, refusal):
                await self._installer.restore_displaced()
                self._record_failure(order, refusal)
            case CleanUp():
                await self._clean_up_models(action)
                return False
            case state.Wait():
                return False
        self._current_step = CurrentStep()
        await self._observe_pod(self._desired)
        return True

    async def _observe_pod(self, desired: DesiredState | None) -> None:
        model = self.served_model or (desired.model if desired else None)
        server = await self._server.observe(model)
        stored = await asyncio.to_thread(
            lambda: {name: self._repository.read_stored(name) for name in self._repository.list_models()}
        )
        events = await self._observe_events(desired)
        if self._runners is not None:
            for name in _models_in_our_runner(server, desired, self._memory.proven):
                self._runners.check_versions(name, server.ready.get(name, ()))
        observed = ObservedPod(
            server,
            stored,
            broken=self._runners.broken_models if self._runners is not None else frozenset(),
            marks=self._runners.reload_marks if self._runners is not None else {},
            events=events,
        )
        if desired is not None and desired.format is ModelFormat.ONNX:
            try:
                observed = await asyncio.to_thread(
                    self._graphs.observe_graphs, desired, observed, self._memory
                )
            except (OSError, ValueError) as error:
                # A full disk, or a damaged record: versions are served as they are.
                log.warning("graphs_not_observed", error=str(error))
        # The report and the metrics change together: who has read that a version serves finds it in both.
        self._observed = await self.tables.observe_tables(desired, observed, self._memory)
        self._memory = state.learn_backend(self._memory, server)
        self._metrics.triton_up.set(server.live)
        serving = max(server.ready.get(self.served_model or "", ()), default=0)
        self._metrics.set_serving_version(serving, time.time())

    async def _observe_events(self, desired: DesiredState | None) -> tuple[EventStreamReport, ...]:
        reports = tuple(await asyncio.to_thread(self._event_reports.read_reports, desired))
        self._metrics.set_events(reports)
        return reports

    async def _fetch_artefact(self, action: FetchArtefact) -> None:
        order, progress = action.order, DownloadProgress()
        self._current_step = CurrentStep(action, progress)
        before = self._observed.stored.get(order.model, {}).get(order.version)
        failure = await self._installer.fetch_version(order, before, progress)
        if failure is not None:
            self._record_failure(order, failure.refusal, is_slow=failure.is_slow)

    async def _load_versions(self, action: LoadVersions) -> VersionRefusal | None:
        """Let the server load versions; return why the order's version does not serve, None if it does."""
        order = action.order
        refusal = await self._server.load_version(
            order.model, order.version, action.config, timeout_s=self._settings.load_timeout_s
        )
        if refusal is None:
            self.tables.record_load()
            if self._runners is not None:
                self._runners.reset_model(order.model)
        return refusal

    async def _load_model(self, action: LoadVersions) -> None:
        order, started = action.order, self._clock()
        self._current_step = CurrentStep(action)
        try:
            refusal = await self._load_versions(action)
        except ServerGoneError:
            refusal = self._refuse_second_crash(order)
            if refusal is None:
                return
        if refusal is not None:
            if self._switch_to_hosted_onnx(order, refusal):
                return
            dropped = await self._graphs.drop_graph(order, refusal, self._observed)
            if dropped is not None:
                self._record_switch(action, dropped)
                if dropped.switched:
                    return
            await self._installer.restore_displaced()
            self._record_failure(order, refusal)
            return
        await self._record_success(action)
        seconds = self._clock() - started
        self._metrics.load_seconds.observe(seconds)
        log.info("model_loaded", model=order.model, versions=action.versions, seconds=round(seconds, 3))

    async def _reload_version(self, action: SwitchGraph | LoadTables) -> bool:
        """Let the server load the version once more, because its files change; return whether it did."""
        self._current_step = CurrentStep(action.load)
        if isinstance(action, LoadTables):
            loaded = await self.tables.load_tables(action.load)
            if loaded:
                await self._record_success(action.load)
            return loaded
        result = await self._graphs.switch_graph(action, self._observed)
        self._record_switch(action.load, result)
        if not result.switched:
            self._memory = replace(self._memory, next_switch_s=self._clock() + state.SWITCH_RETRY_S)
        return result.switched

    def _refuse_second_crash(self, order: DesiredState) -> VersionRefusal | None:
        """Return a refusal once the server has ended twice under the same load.

        The first end may be a coincidence.
        """
        if self._crashed_order != order:
            self._crashed_order = order
            return None
        return VersionRefusal(
            FailureReason.SERVER_ENDED,
            f"Triton ended twice while it loaded version {order.version} of {order.model}: out of memory, or a crash "
            "in the model; the log of container triton says which",
        )

    def _switch_to_hosted_onnx(self, order: DesiredState, refusal: VersionRefusal) -> bool:
        """Switch to our own ONNX runner if the refusal shows that Triton has no ONNX backend; return whether it did."""
        unknown = self._memory.backend is OnnxBackend.AUTO and order.format is ModelFormat.ONNX
        if unknown and refusal.reason is FailureReason.BACKEND_MISSING:
            self._memory = replace(self._memory, backend=OnnxBackend.HOSTED)
            log.info("onnx_hosted", model=order.model, reason="the server has no onnxruntime backend")
            return True
        return False

    async def _record_success(self, action: LoadVersions) -> None:
        order = action.order
        self._crashed_order = None
        await self._installer.keep_version(order)
        with contextlib.suppress(OSError):  # the file is for people only
            await asyncio.to_thread(self._repository.write_config, order.model, to_config_text(action.config))
        self._memory = state.record_success(self._memory, order)
        graphs = await asyncio.to_thread(self._repository.read_graphs, order.model)
        self._memory = state.record_graphs(self._memory, order.model, action.versions, graphs)
        self._checkpoint.save_orders(proven=order)

    def _record_switch(self, action: LoadVersions, result: SwitchResult) -> None:
        if result.refused is not None:
            self._memory = state.refuse_graph(self._memory, result.refused.sha256, result.refused.message)
        if result.graphs is not None:
            self._memory = state.record_graphs(
                self._memory, action.order.model, action.versions, result.graphs
            )

    def _record_failure(self, order: DesiredState, refusal: VersionRefusal, *, is_slow: bool = False) -> None:
        now_s = self._clock()
        self._memory = state.record_failure(self._memory, order, refusal, now_s=now_s, is_slow=is_slow)
        self._metrics.failures.labels(refusal.reason).inc()
        log.warning(
            "order_failed",
            model=order.model,
            version=order.version,
            reason=refusal.reason,
            message=refusal.message,
        )

    async def _clean_up_models(self, action: CleanUp) -> None:
        for model in action.unload:
            with contextlib.suppress(ServerGoneError):
                await self._server.unload_model(model)
        for model, version in action.remove:
            await asyncio.to_thread(self._repository.remove_version, model, version)
        log.info("tidied", unloaded=action.unload, removed=action.remove)


def _models_in_our_runner(server: ServerState, *orders: DesiredState | None) -> set[str]:
    """Return the models that a process of ours runs in the server."""
    return {
        order.model
        for order in orders
        if order is not None and order.format in HOST_MODELS and server.backends.get(order.model) == "python"
    }

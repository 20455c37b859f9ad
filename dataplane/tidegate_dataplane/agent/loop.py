"""The level-triggered loop: observe, plan, take one step, and report what is true."""

import asyncio
import contextlib
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import structlog

from tidegate_dataplane.agent import state
from tidegate_dataplane.agent.artefacts.facts import Facts
from tidegate_dataplane.agent.artefacts.fetch import OpenSource, fetch
from tidegate_dataplane.agent.artefacts.receive import Progress
from tidegate_dataplane.agent.config_text import Config, config_text
from tidegate_dataplane.agent.files import Keepsake
from tidegate_dataplane.agent.metrics import Metrics
from tidegate_dataplane.agent.refusals import ArtefactError, Refusal
from tidegate_dataplane.agent.reporting import Doing, make_report, served_model
from tidegate_dataplane.agent.repository import HOSTS, Installed, Repository
from tidegate_dataplane.agent.runners import Runners
from tidegate_dataplane.agent.settings import OnnxBackend, Settings
from tidegate_dataplane.agent.state import Fetch, Load, Memory, Observed, ServerState, Tidy
from tidegate_dataplane.agent.triton import ServerGoneError
from tidegate_dataplane.contract import (
    AgentReport,
    DesiredState,
    FailureReason,
    ModelFormat,
    SampleReport,
    StreamReport,
)

log = structlog.get_logger()

# While Triton starts, every moment counts.
STARTING_POLL_S = 0.2


class Server(Protocol):
    """Interface of Triton that the loop needs."""

    async def observe(self, model: str | None) -> ServerState:
        """Return what is ready."""
        ...

    async def load(self, model: str, version: int, config: Config, *, timeout_s: float) -> Refusal | None:
        """Load what the configuration lists; return why the version is not ready afterwards, None if it is."""
        ...

    async def unload(self, model: str) -> None:
        """Unload every version of a model."""
        ...


class Samples(Protocol):
    """Interface of the sample log that the loop needs."""

    def follow(self, order: DesiredState) -> None:
        """Log samples according to the order."""
        ...

    def report(self, *, native: bool) -> SampleReport | None:
        """Return the state of the log; None if the order has none."""
        ...


class Work(Protocol):
    """Interface of the near-line stream that the loop needs."""

    def follow(self, order: DesiredState) -> None:
        """Consume the stream of the order."""
        ...

    def report(self) -> StreamReport | None:
        """Return the state of the stream; None if the order has none."""
        ...


@dataclass(frozen=True, slots=True)
class _Unproven:
    """A version that replaced another with the same number; `before` describes the replaced one."""

    order: DesiredState
    installed: Installed
    before: Facts


class Agent:
    """Works towards the newest order."""

    def __init__(
        self,
        settings: Settings,
        server: Server,
        repository: Repository,
        keepsake: Keepsake,
        open_source: OpenSource,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        samples: Samples | None = None,
        runners: Runners | None = None,
        stream: Work | None = None,
    ) -> None:
        self._settings = settings
        self._samples = samples
        self._stream = stream
        self._runners = runners
        self._server = server
        self._repository = repository
        self._keepsake = keepsake
        self._open_source = open_source
        self._metrics = metrics
        self._clock = clock
        self._changed = asyncio.Event()
        if runners is not None:
            runners.subscribe(self._changed.set)
        self._desired: DesiredState | None = None
        self._memory = Memory(backend=settings.onnx_backend)
        self._observed = Observed(ServerState(), {})
        self._doing = Doing()
        self._ended_server: DesiredState | None = None
        self._unproven: _Unproven | None = None

    def start_with(self, order: DesiredState | None) -> None:
        """Start with the newer order: the one in the pod's ConfigMap, or the one that an earlier agent accepted."""
        accepted, proven = self._keepsake.read()
        newest = order
        if accepted is not None and (order is None or accepted.epoch >= order.epoch):
            newest = accepted
        self._memory = Memory(proven=proven, backend=self._settings.onnx_backend)
        self._desired = newest
        if newest is not None:
            self._follow(newest)

    def accept(self, order: DesiredState) -> bool:
        """Make `order` the one to work towards; return False if an older leader than the newest seen sent it."""
        current = self._desired
        if current is not None and order.epoch < current.epoch:
            return False
        self._keepsake.keep(accepted=order)
        self._desired = order
        self._follow(order)
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

    def report(self) -> AgentReport:
        """Return the last observed state, compared with the newest order."""
        native = self._memory.backend is OnnxBackend.NATIVE
        report = make_report(
            self._settings.pod_name, self._desired, self._observed, self._memory, self._doing
        )
        return report.model_copy(
            update={
                "samples": self._samples.report(native=native) if self._samples is not None else None,
                "stream": self._stream.report() if self._stream is not None else None,
                "ended": self._runners.report() if self._runners is not None else None,
            }
        )

    @property
    def served_model(self) -> str | None:
        """Return the model that answers in this pod; None before one does."""
        return served_model(self._desired, self._observed, self._memory)

    def _follow(self, order: DesiredState) -> None:
        """Apply the parts of the order that need no step of the loop."""
        self._metrics.target_version.set(order.version)
        if self._samples is not None:
            self._samples.follow(order)
        if self._stream is not None:
            self._stream.follow(order)

    async def run(self) -> None:
        """Take steps until cancelled."""
        while True:
            took_step = await self.turn()
            if not took_step:
                live = self._observed.server.live
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.poll_s if live else STARTING_POLL_S):
                        await self._changed.wait()

    async def turn(self) -> bool:
        """Observe, plan and take one step; return whether there was one."""
        self._changed.clear()
        desired = self._desired
        if self._unproven is not None and (
            desired is None or self._unproven.order != state.content_of(desired)
        ):
            await self._put_back()
        await self._observe(desired)
        action = state.plan(
            desired,
            self._observed,
            self._memory,
            now_s=self._clock(),
            intra_op_threads=self._settings.intra_op_threads,
        )
        match action:
            case Fetch():
                await self._fetch(action)
            case Load():
                await self._load(action)
            case state.Refuse(order, refusal):
                await self._put_back()
                self._failed(order, refusal)
            case Tidy():
                await self._tidy(action)
                return False
            case state.Wait():
                return False
        self._doing = Doing()
        await self._observe(self._desired)
        return True

    async def _observe(self, desired: DesiredState | None) -> None:
        model = self.served_model or (desired.model if desired else None)
        server = await self._server.observe(model)
        stored = await asyncio.to_thread(
            lambda: {name: self._repository.stored(name) for name in self._repository.models()}
        )
        if self._runners is not None:
            for name in _of_our_runner(server, desired, self._memory.proven):
                self._runners.look(name, server.ready.get(name, ()))
        self._observed = Observed(
            server,
            stored,
            broken=self._runners.broken if self._runners is not None else frozenset(),
            marks=self._runners.marks if self._runners is not None else {},
        )
        self._memory = state.with_backend(self._memory, server)
        self._metrics.triton_up.set(server.live)
        serving = max(server.ready.get(self.served_model or "", ()), default=0)
        self._metrics.serves(serving, time.time())

    async def _fetch(self, action: Fetch) -> None:
        order, progress, started = action.order, Progress(), self._clock()
        self._doing = Doing(action, progress)
        staging: Path | None = None
        try:
            staging = await asyncio.to_thread(self._repository.staging)
            parts = self._repository.parts
            facts = await self._unless_changed(
                fetch(order, staging, self._open_source, progress, parts=parts)
            )
            if facts is None:
                log.info(
                    "fetch_dropped", model=order.model, version=order.version, reason="another order arrived"
                )
                return
            before = self._observed.stored.get(order.model, {}).get(order.version)
            installed = await asyncio.to_thread(self._repository.install, staging, order, facts)
        except ArtefactError as error:
            self._failed(order, error.refusal)
            return
        except OSError as error:
            message = f"{order.uri}/{order.version} cannot be stored: {error}"
            self._failed(order, Refusal(FailureReason.FETCH_FAILED, message))
            return
        except Exception as error:  # noqa: BLE001 - see below
            # Whatever an unexpected artefact or server causes, the current version goes on serving.
            place = traceback.extract_tb(error.__traceback__)[-1]
            log.error(
                "fetch_crashed", error=type(error).__name__, file=Path(place.filename).name, line=place.lineno
            )
            message = f"{order.uri}/{order.version} cannot be read ({type(error).__name__}): report it, with the agent's log"
            self._failed(order, Refusal(FailureReason.ARTEFACT_INVALID, message))
            return
        finally:
            self._metrics.fetched_bytes.inc(progress.done)
            await asyncio.to_thread(self._repository.discard, staging)
        if before is not None:
            self._unproven = _Unproven(order, installed, before)
        seconds = self._clock() - started
        self._metrics.fetch_seconds.observe(seconds)
        log.info(
            "artefact_fetched",
            model=order.model,
            version=order.version,
            bytes=progress.done,
            resumed=progress.resumed,
            sha256=facts.digest,
            seconds=round(seconds, 3),
        )

    async def _unless_changed(self, work: Coroutine[Any, Any, Facts]) -> Facts | None:
        """Await the work, or cancel it and return None when another order arrives first."""
        task = asyncio.ensure_future(work)
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({task, changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            if not task.done():
                task.cancel()
            await asyncio.gather(task, changed, return_exceptions=True)
        return None if task.cancelled() else task.result()

    async def _load(self, action: Load) -> None:
        order, started = action.order, self._clock()
        self._doing = Doing(action)
        try:
            refusal = await self._server.load(
                order.model, order.version, action.config, timeout_s=self._settings.load_timeout_s
            )
        except ServerGoneError:
            refusal = self._server_gone(order)
            if refusal is None:
                return
        if refusal is not None:
            if self._learned_of_no_backend(order, refusal):
                return
            await self._put_back()
            self._failed(order, refusal)
            return
        if self._runners is not None:
            self._runners.loaded(order.model)
        await self._proven(action)
        seconds = self._clock() - started
        self._metrics.load_seconds.observe(seconds)
        log.info("model_loaded", model=order.model, versions=action.versions, seconds=round(seconds, 3))

    def _server_gone(self, order: DesiredState) -> Refusal | None:
        """Return a refusal once the server has ended twice under the same load.

        The first end may be a coincidence.
        """
        if self._ended_server != order:
            self._ended_server = order
            return None
        return Refusal(
            FailureReason.SERVER_ENDED,
            f"Triton ended twice while it loaded version {order.version} of {order.model}: out of memory, or a crash "
            "in the model; the log of container triton says which",
        )

    def _learned_of_no_backend(self, order: DesiredState, refusal: Refusal) -> bool:
        """Switch to our own ONNX runner if the refusal shows that Triton has no ONNX backend; return whether it did."""
        unknown = self._memory.backend is OnnxBackend.AUTO and order.format is ModelFormat.ONNX
        if unknown and refusal.reason is FailureReason.BACKEND_MISSING:
            self._memory = replace(self._memory, backend=OnnxBackend.HOSTED)
            log.info("onnx_hosted", model=order.model, reason="the server has no onnxruntime backend")
            return True
        return False

    async def _proven(self, action: Load) -> None:
        order = action.order
        self._ended_server = None
        if self._unproven is not None and self._unproven.order == order:
            await asyncio.to_thread(self._repository.discard, self._unproven.installed.displaced)
            self._unproven = None
        with contextlib.suppress(OSError):  # the file is for people only
            await asyncio.to_thread(self._repository.write_config, order.model, config_text(action.config))
        self._memory = state.after_success(self._memory, order)
        self._keepsake.keep(proven=order)

    async def _put_back(self) -> None:
        """Restore the version that an unproven one displaced."""
        if self._unproven is not None:
            await asyncio.to_thread(self._repository.restore, self._unproven.installed, self._unproven.before)
            self._unproven = None

    def _failed(self, order: DesiredState, refusal: Refusal) -> None:
        self._memory = state.after_failure(self._memory, order, refusal, now_s=self._clock())
        self._metrics.failures.labels(refusal.reason).inc()
        log.warning(
            "order_failed",
            model=order.model,
            version=order.version,
            reason=refusal.reason,
            message=refusal.message,
        )

    async def _tidy(self, action: Tidy) -> None:
        for model in action.unload:
            with contextlib.suppress(ServerGoneError):
                await self._server.unload(model)
        for model, version in action.remove:
            await asyncio.to_thread(self._repository.remove, model, version)
        log.info("tidied", unloaded=action.unload, removed=action.remove)


def _of_our_runner(server: ServerState, *orders: DesiredState | None) -> set[str]:
    """Return the models that a process of ours runs in the server."""
    return {
        order.model
        for order in orders
        if order is not None and order.format in HOSTS and server.backends.get(order.model) == "python"
    }

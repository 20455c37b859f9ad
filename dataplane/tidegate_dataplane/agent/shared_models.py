"""Models of several Inferences in one server: an agent for each, which sees only its own model."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import structlog
from pydantic import ValidationError

from tidegate_dataplane.agent.artefacts.source import OpenSource
from tidegate_dataplane.agent.config_text import ModelConfig
from tidegate_dataplane.agent.files import OrderCheckpoint, write_whole
from tidegate_dataplane.agent.loop import Agent, ModelServer
from tidegate_dataplane.agent.metrics import AgentMetrics, render_by_inference
from tidegate_dataplane.agent.refusals import VersionRefusal
from tidegate_dataplane.agent.repository import ModelRepository
from tidegate_dataplane.agent.runners import RunnerRegistry
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.agent.state import ServerState
from tidegate_dataplane.agent.triton import ServerGoneError
from tidegate_dataplane.contract import DesiredState, SharedOrders, SharedReports

log = structlog.get_logger()

ValueT = TypeVar("ValueT")

SHARED_DIR = "shared"
"""Folder of the cache with a folder for each Inference."""


@dataclass(frozen=True, slots=True)
class _ModelAgent:
    """The agent of one Inference, and the task that runs it."""

    model: str
    source: tuple[str, str]
    """Of which artefacts: another model may come under the same name and version."""
    agent: Agent
    metrics: AgentMetrics
    task: asyncio.Task[None]

    def is_for(self, order: DesiredState) -> bool:
        """Return whether this agent can execute an order of its Inference: not one for another model."""
        return (self.model, self.source) == (order.model, (order.uri, order.format.value))


class _OwnModel:
    """The server as the agent of one model sees it; only one model is loaded at a time, as memory for loading is shared."""

    def __init__(self, server: ModelServer, model: str, loading: asyncio.Lock) -> None:
        self._server, self._model, self._loading = server, model, loading

    async def observe(self, model: str | None) -> ServerState:
        """Return the state of the server without the other models."""
        state = await self._server.observe(model)
        return replace(
            state,
            ready=self._select_own(state.ready),
            digests=self._select_own(state.digests),
            backends=self._select_own(state.backends),
            memory=self._select_own(state.memory),
        )

    async def load_version(
        self, model: str, version: int, config: ModelConfig, *, timeout_s: float
    ) -> VersionRefusal | None:
        """Load it when no other model is being loaded."""
        async with self._loading:
            return await self._server.load_version(model, version, config, timeout_s=timeout_s)

    async def unload_model(self, model: str) -> None:
        """Unload every version."""
        await self._server.unload_model(model)

    def _select_own(self, by_model: Mapping[str, ValueT]) -> dict[str, ValueT]:
        return {model: value for model, value in by_model.items() if model == self._model}


class SharedModels:
    """Works towards the newest orders of all Inferences that share the pod.

    A failure of one model affects no other: each has its own agent, folders and setbacks.
    """

    def __init__(
        self,
        settings: AgentSettings,
        server: ModelServer,
        open_source: OpenSource,
        pod_metrics: AgentMetrics,
        runners: RunnerRegistry | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._server = server
        self._open_source = open_source
        self._pod_metrics = pod_metrics
        self._runners = runners
        self._clock = clock
        self._folder = settings.cache_dir / SHARED_DIR
        self._checkpoint = settings.cache_dir / "shared.json"
        self._orders: SharedOrders | None = self._read_accepted()
        self._agents: dict[str, _ModelAgent] = {}
        self._changed = asyncio.Event()
        self._loading = asyncio.Lock()

    def accept_orders(self, orders: SharedOrders) -> bool:
        """Make these the orders to work towards; return False if an older leader than the newest seen sent them.

        Those that it has already reach its agents again, as a single model's agent takes an order again.
        """
        if self._orders is not None and orders.epoch < self._orders.epoch:
            return False
        if is_new := orders != self._orders:
            self._orders = orders
            try:
                write_whole(self._checkpoint, orders.to_json())
            except OSError as error:
                log.warning("checkpoint_not_written", path=str(self._checkpoint), error=str(error))
        for order in self._list_orders():
            running = self._agents.get(order.owner)
            if running is not None and running.is_for(order):
                running.agent.accept_order(order)
        if is_new:
            self._changed.set()
        return True

    def build_report(self) -> SharedReports:
        """Return the report of each model; one that is not ordered any more has none."""
        ordered = {order.owner: order for order in self._list_orders()}
        return SharedReports(
            pod=self._settings.pod_name,
            epoch=self._orders.epoch if self._orders is not None else 0,
            reports={
                owner: running.agent.build_report()
                for owner, running in sorted(self._agents.items())
                if owner in ordered and running.is_for(ordered[owner])
            },
        )

    @property
    def served_models(self) -> Collection[str]:
        """Return the models that answer in this pod."""
        served = [running.agent.served_model for running in self._agents.values()]
        return [model for model in served if model is not None]

    def render_metrics(self) -> bytes:
        """Return the metrics of all models in the exposition format, with the Inference as a label."""
        by_inference = {owner: running.metrics for owner, running in self._agents.items()}
        return render_by_inference(by_inference, self._pod_metrics)

    async def run_agents(self) -> None:
        """Start and end agents until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                is_complete = await self._follow_orders(tasks)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if is_complete else self._settings.poll_s):
                        await self._changed.wait()

    async def _follow_orders(self, tasks: asyncio.TaskGroup) -> bool:
        """Remove what is not ordered, then start what is: a new Inference may use the name of one that goes.

        Return False if the disk failed one of them: the others go on, and that one is tried again.
        """
        failures: list[OSError] = []

        @contextlib.contextmanager
        def isolate_failure(owner: str) -> Generator[None]:
            try:
                yield
            except OSError as error:
                log.warning("model_not_followed", owner=owner, error=str(error))
                failures.append(error)

        orders = self._orders
        ordered = {order.owner: order for order in self._list_orders()}
        for owner, running in list(self._agents.items()):
            order = ordered.get(owner)
            if order is None or not running.is_for(order):
                with isolate_failure(owner):
                    await self._end_agent(owner)
        expected = {_name_folder(owner) for owner in ordered}
        stored = await asyncio.to_thread(_list_folders, self._folder)
        for name in stored - expected:
            with isolate_failure(name):
                await self._remove_models(name)
        for owner, order in ordered.items():
            with isolate_failure(owner):
                if owner not in self._agents:
                    self._start_agent(order, tasks)
                elif orders is self._orders:
                    # It may have come while an agent of that Inference was not started yet.
                    self._agents[owner].agent.accept_order(order)
        return not failures

    def _start_agent(self, order: DesiredState, tasks: asyncio.TaskGroup) -> None:
        folder = self._folder / _name_folder(order.owner)
        repository = self._open_repository(folder.name)
        repository.prepare_folders()
        metrics = AgentMetrics()
        agent = Agent(
            self._settings.model_copy(update={"cache_dir": folder}),
            _OwnModel(self._server, order.model, self._loading),
            repository,
            OrderCheckpoint(folder),
            self._open_source,
            metrics,
            clock=self._clock,
            runners=self._runners,
        )
        agent.start_with(order)
        task = tasks.create_task(self._run_agent(agent, order.owner))
        self._agents[order.owner] = _ModelAgent(
            order.model, (order.uri, order.format.value), agent, metrics, task
        )
        log.info("model_added", owner=order.owner, model=order.model, version=order.version)

    async def _run_agent(self, agent: Agent, owner: str) -> None:
        """Run an agent until cancelled; an unexpected error stays with its model."""
        while True:
            try:
                await agent.run()
            except Exception:
                log.exception("agent_failed", owner=owner)
                await asyncio.sleep(self._settings.poll_s)

    async def _end_agent(self, owner: str) -> None:
        running = self._agents.pop(owner)
        running.task.cancel()
        await asyncio.wait({running.task})
        running.agent.detach_runners()
        await self._remove_models(_name_folder(owner))
        log.info("model_removed", owner=owner, model=running.model)

    async def _remove_models(self, name: str) -> None:
        """Unload and remove what the Inference with this folder had."""
        repository = self._open_repository(name)
        for model in await asyncio.to_thread(repository.list_models):
            # A server that ended meanwhile starts without models.
            with contextlib.suppress(ServerGoneError):
                await self._server.unload_model(model)
        await asyncio.to_thread(repository.remove_all)

    def _open_repository(self, name: str) -> ModelRepository:
        return ModelRepository(self._settings.repository_dir, self._folder / name, scope=name)

    def _list_orders(self) -> tuple[DesiredState, ...]:
        """Return the orders with the leader's term."""
        if self._orders is None:
            return ()
        epoch = self._orders.epoch
        return tuple(order.model_copy(update={"epoch": epoch}) for order in self._orders.orders)

    def _read_accepted(self) -> SharedOrders | None:
        """Return the orders that an earlier agent accepted."""
        try:
            return SharedOrders.model_validate_json(self._checkpoint.read_bytes())
        except (OSError, ValidationError):
            return None


def _name_folder(owner: str) -> str:
    """Return the folder of an Inference; names of namespaces and objects have no underscore."""
    return owner.replace("/", "_")


def _list_folders(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()

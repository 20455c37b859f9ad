"""Wire the agent's parts and run them until the pod ends."""

import asyncio
import datetime
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import web
from pydantic import ValidationError

from tidegate_dataplane.agent.artefacts.source_factory import make_source_opener, make_store_opener
from tidegate_dataplane.agent.certificates import make_server_certificate
from tidegate_dataplane.agent.compile_store import CompileStore
from tidegate_dataplane.agent.control import control_app, shared_control_app
from tidegate_dataplane.agent.control_server import ControlServer
from tidegate_dataplane.agent.drain import Drain
from tidegate_dataplane.agent.files import OrderCheckpoint, ensure_control_key, read_first_order
from tidegate_dataplane.agent.loop import Agent
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.nearline.stream import NearlineStream, make_worker_starter
from tidegate_dataplane.agent.probes import ServingAgent, probes_app
from tidegate_dataplane.agent.repository import COMPILED_DIR, ModelRepository
from tidegate_dataplane.agent.runners import RunnerRegistry
from tidegate_dataplane.agent.samples.log import SampleLog
from tidegate_dataplane.agent.samples.sink_factory import make_sink_opener
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.agent.shared_models import SharedModels
from tidegate_dataplane.agent.stopping import run_until, watch_stop_signals
from tidegate_dataplane.agent.triton import Triton
from tidegate_dataplane.compiler.cache_exchange import CacheExchange
from tidegate_dataplane.contract import DesiredState

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _ServingParts:
    """What differs between a pod of one Inference and a shared one.

    `work` runs until the pod ends; `finish_work` ends what the pod does by itself.
    """

    agent: ServingAgent
    control: web.Application
    render_metrics: Callable[[], bytes]
    work: tuple[Callable[[], Coroutine[Any, Any, None]], ...]
    finish_work: Callable[[], Awaitable[None]] | None = None


async def run_agent(settings: AgentSettings, environment: Mapping[str, str] = os.environ) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    stop, leaving = watch_stop_signals(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, leaving.set)

    key = ensure_control_key(settings.run_dir)
    metrics = AgentMetrics()
    triton = Triton(settings.triton_grpc, key, metrics=settings.triton_metrics)
    runners = RunnerRegistry(metrics)
    samples = SampleLog(settings, metrics, make_sink_opener(settings, environment), runners)
    if settings.shared_models is None:
        parts = _wire_agent(settings, environment, metrics, triton, runners, samples)
    else:
        parts = _wire_shared_models(settings, environment, settings.shared_models, metrics, triton, runners)
    drain = Drain(
        triton,
        quiet_s=settings.drain_quiet_s,
        limit_s=settings.drain_limit_s,
        least_s=settings.drain_least_s,
        folder=settings.run_dir,
        finish_work=parts.finish_work,
    )

    async def drain_on_signal() -> None:
        await leaving.wait()
        await drain.run()

    names = (settings.pod_name, settings.pod_ip, "127.0.0.1", "localhost")
    pem = make_server_certificate(names, datetime.datetime.now(datetime.UTC))
    authority = settings.config_dir / "client-ca.crt"
    control = ControlServer(
        parts.control, pem, authority, address=settings.address, port=settings.control_port
    )
    app = probes_app(parts.agent, triton, drain, runners, parts.render_metrics)
    probes = web.AppRunner(app, access_log=None, handle_signals=False)
    await samples.start()
    await control.start()
    await probes.setup()
    await web.TCPSite(probes, settings.address, settings.http_port).start()
    log.info("agent_started", pod=settings.pod_name, http_port=probes.addresses[0][1])
    try:
        await run_until(stop, *parts.work, control.watch_authority, drain_on_signal)
        await drain.run()
        if parts.finish_work is not None:
            await parts.finish_work()
        await samples.finish_writing()
    finally:
        await control.stop()
        await probes.cleanup()
        await triton.close()


def _wire_agent(
    settings: AgentSettings,
    environment: Mapping[str, str],
    metrics: AgentMetrics,
    triton: Triton,
    runners: RunnerRegistry,
    samples: SampleLog,
) -> _ServingParts:
    """Wire the agent of a pod that serves one object."""
    repository = ModelRepository(settings.repository_dir, settings.cache_dir)
    repository.prepare_folders()

    async def model_answers(model: str) -> bool:
        return model not in runners.broken_models and await triton.is_ready(model) is True

    stream = NearlineStream(make_worker_starter(settings, environment, metrics, model_answers))
    compile_store = CompileStore(
        CacheExchange(settings.cache_dir / COMPILED_DIR),
        make_store_opener(settings, environment),
    )
    agent = Agent(
        settings,
        triton,
        repository,
        OrderCheckpoint(settings.cache_dir),
        make_source_opener(settings, environment),
        metrics,
        samples=samples,
        runners=runners,
        stream=stream,
        compile_store=compile_store,
    )
    agent.start_with(_first_order(settings))
    return _ServingParts(
        agent,
        control_app(agent),
        metrics.render_text,
        (agent.run, agent.tables.watch_tables, compile_store.read_files, compile_store.write_files),
        stream.finish_work,
    )


def _wire_shared_models(
    settings: AgentSettings,
    environment: Mapping[str, str],
    limit: int,
    metrics: AgentMetrics,
    triton: Triton,
    runners: RunnerRegistry,
) -> _ServingParts:
    """Wire the agents of a pod that Inferences share."""
    models = SharedModels(settings, triton, make_source_opener(settings, environment), metrics, runners)
    return _ServingParts(
        models, shared_control_app(models, limit), models.render_metrics, (models.run_agents,)
    )


def _first_order(settings: AgentSettings) -> DesiredState | None:
    try:
        return read_first_order(settings.config_dir)
    except ValidationError as error:
        log.error("first_order_unreadable", error=str(error))
        return None

"""Wire the agent's parts and run them until the pod ends."""

import asyncio
import datetime
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog
from aiohttp import web
from pydantic import ValidationError

from tidegate_dataplane.agent.artefacts.places import sources
from tidegate_dataplane.agent.certificates import make_server_certificate
from tidegate_dataplane.agent.control import control_app
from tidegate_dataplane.agent.control_server import ControlServer
from tidegate_dataplane.agent.drain import Drain
from tidegate_dataplane.agent.files import Keepsake, ensure_control_key, read_first_order
from tidegate_dataplane.agent.loop import Agent
from tidegate_dataplane.agent.metrics import Metrics
from tidegate_dataplane.agent.nearline.stream import Stream, workers
from tidegate_dataplane.agent.probes import probes_app
from tidegate_dataplane.agent.repository import Repository
from tidegate_dataplane.agent.runners import Runners
from tidegate_dataplane.agent.samples.log import SampleLog
from tidegate_dataplane.agent.samples.places import sinks
from tidegate_dataplane.agent.settings import Settings
from tidegate_dataplane.agent.triton import Triton
from tidegate_dataplane.contract import DesiredState

log = structlog.get_logger()


async def serve(settings: Settings, environment: Mapping[str, str] = os.environ) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    stop, leaving = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, leaving.set)

    key = ensure_control_key(settings.run_dir)
    repository = Repository(settings.repository_dir, settings.cache_dir)
    repository.prepare()
    metrics = Metrics()
    triton = Triton(settings.triton_grpc, key, metrics=settings.triton_metrics)
    runners = Runners(metrics)
    samples = SampleLog(settings, metrics, sinks(settings, environment), runners)

    async def model_answers(model: str) -> bool:
        return model not in runners.broken and await triton.is_ready(model) is True

    stream = Stream(workers(settings, environment, metrics, model_answers))
    agent = Agent(
        settings,
        triton,
        repository,
        Keepsake(settings.cache_dir),
        sources(settings, environment),
        metrics,
        samples=samples,
        runners=runners,
        stream=stream,
    )
    agent.start_with(_first_order(settings))
    drain = Drain(
        triton,
        quiet_s=settings.drain_quiet_s,
        limit_s=settings.drain_limit_s,
        least_s=settings.drain_least_s,
        folder=settings.run_dir,
        finish_work=stream.finish,
    )

    async def drain_on_signal() -> None:
        await leaving.wait()
        await drain.run()

    names = (settings.pod_name, settings.pod_ip, "127.0.0.1", "localhost")
    pem = make_server_certificate(names, datetime.datetime.now(datetime.UTC))
    authority = settings.config_dir / "client-ca.crt"
    control = ControlServer(
        control_app(agent), pem, authority, address=settings.address, port=settings.control_port
    )
    app = probes_app(agent, triton, drain, runners, metrics)
    probes = web.AppRunner(app, access_log=None, handle_signals=False)
    await samples.start()
    await control.start()
    await probes.setup()
    await web.TCPSite(probes, settings.address, settings.http_port).start()
    log.info("agent_started", pod=settings.pod_name, http_port=probes.addresses[0][1])
    try:
        await _until(stop, agent.run, control.watch, drain_on_signal)
        await drain.run()
        await stream.finish()
        await samples.finish()
    finally:
        await control.stop()
        await probes.cleanup()
        await triton.close()


async def _until(stop: asyncio.Event, *parts: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the parts until `stop` is set; a part that fails ends the process, and the kubelet restarts it."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(part()) for part in parts]
        await stop.wait()
        for task in tasks:
            task.cancel()


def _first_order(settings: Settings) -> DesiredState | None:
    try:
        return read_first_order(settings.config_dir)
    except ValidationError as error:
        log.error("first_order_unreadable", error=str(error))
        return None

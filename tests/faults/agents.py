"""The agent's own code in this process, one per pod, behind mutual TLS at the pod's own loopback address."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from aiohttp import web

from builders.pretended_server import PretendedServer
from faults.proxy import BrokenError
from tidegate.resources.serving_pod import CONTROL_PORT
from tidegate_dataplane.agent.artefacts.folder_source import folder_source
from tidegate_dataplane.agent.artefacts.source import ArtefactSource
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.certificates import make_server_certificate
from tidegate_dataplane.agent.control import control_app
from tidegate_dataplane.agent.control_server import ControlServer
from tidegate_dataplane.agent.files import OrderCheckpoint, read_first_order
from tidegate_dataplane.agent.loop import Agent
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.repository import ModelRepository
from tidegate_dataplane.agent.settings import AgentSettings, OnnxBackend
from tidegate_dataplane.contract import AgentReport, DesiredState

BAD_VERSION: Final = 9
_POLL_S: Final = 0.05
_LOADS_IN_S: Final = 0.03


class OrderGate(Protocol):
    """Who decides what becomes of an order on its way to an agent."""

    async def before(self, namespace: str, pod: str, order: DesiredState) -> object:
        """Before the agent sees it; raises BrokenError when it never does. What it returns goes to `after`."""
        ...

    async def after(self, token: object) -> None:
        """When the agent has accepted it; raises BrokenError when nobody is to hear the answer."""
        ...


@dataclass(frozen=True, slots=True)
class PodFacts:
    """Which pod an agent belongs to, and where it listens."""

    name: str
    uid: str
    namespace: str
    address: str


@dataclass(slots=True)
class PodAgent:
    """One running agent; `history` are the versions that answered, in turn."""

    facts: PodFacts
    folder: Path
    models: Path
    gate: OrderGate
    history: list[int] = field(default_factory=list[int])
    epochs: list[int] = field(default_factory=list[int])
    fresh: bool = False
    """Whether each call comes over a connection of its own, with a handshake of its own."""
    _agent: Agent | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def ready(self) -> bool:
        """What the readiness probe would say."""
        return self._agent is not None and self._agent.served_model is not None

    def report(self) -> AgentReport:
        """What it says of itself."""
        assert self._agent is not None
        return self._agent.build_report()

    async def start(self, config: Mapping[str, str]) -> None:
        """Starts it with the files of its ConfigMap."""
        etc = self.folder / "etc"
        etc.mkdir(parents=True)
        self.mount(config)
        settings = AgentSettings(
            pod_name=self.facts.name,
            file_root=self.models,
            repository_dir=self.folder / "repository",
            cache_dir=self.folder / "cache",
            run_dir=self.folder / "run",
            poll_s=_POLL_S,
            onnx_backend=OnnxBackend.HOSTED,
        )
        for made in (settings.repository_dir, settings.cache_dir, settings.run_dir):
            made.mkdir()
        repository = ModelRepository(settings.repository_dir, settings.cache_dir)
        repository.prepare_folders()
        server = PretendedServer(
            settings.repository_dir,
            native=True,
            bad={BAD_VERSION},
            loads_in_s=_LOADS_IN_S,
            changed=self.history.append,
        )

        def open_source(uri: ArtefactUri, order: DesiredState) -> ArtefactSource:
            del order
            return folder_source(uri, file_root=settings.file_root, pvc_root=settings.pvc_root)

        agent = Agent(
            settings, server, repository, OrderCheckpoint(settings.cache_dir), open_source, AgentMetrics()
        )
        agent.start_with(read_first_order(etc))
        self._agent = agent
        app = control_app(agent)
        app.middlewares.append(self._gated)
        pem = make_server_certificate(
            (self.facts.name, self.facts.address), datetime.datetime.now(datetime.UTC)
        )
        control = ControlServer(
            app, pem, etc / "client-ca.crt", address=self.facts.address, port=CONTROL_PORT
        )
        await control.start()
        self._stack.push_async_callback(control.stop)
        for task in (asyncio.create_task(agent.run()), asyncio.create_task(control.watch_authority())):
            self._stack.callback(task.cancel)

    def mount(self, config: Mapping[str, str]) -> None:
        """Writes the files of its ConfigMap, each in one step."""
        for name, text in config.items():
            partial = self.folder / f"{name}.partial"
            partial.write_text(text)
            partial.replace(self.folder / "etc" / name)

    async def stop(self) -> None:
        """Ends it as the end of its pod does."""
        await self._stack.aclose()

    @web.middleware
    async def _gated(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.method != "PUT":
            return self._closing(await handler(request))
        order = DesiredState.model_validate_json(await request.read())
        self.epochs.append(order.epoch)
        try:
            token = await self.gate.before(self.facts.namespace, self.facts.name, order)
            answer = await handler(request)
            await self.gate.after(token)
        except BrokenError:
            if request.transport is not None:
                request.transport.abort()
            raise asyncio.CancelledError from None
        return self._closing(answer)

    def _closing(self, answer: web.StreamResponse) -> web.StreamResponse:
        if self.fresh:
            answer.force_close()
        return answer

"""Serve a version with its compiled graph: request the compilation, switch graphs, and go back when the server refuses one."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from tidegate_dataplane.agent import state
from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.refusals import VersionRefusal
from tidegate_dataplane.agent.repository import ModelRepository
from tidegate_dataplane.agent.state import AgentMemory, LoadVersions, ObservedPod, SwitchGraph
from tidegate_dataplane.agent.triton import ServerGoneError
from tidegate_dataplane.compiler.exchange import (
    MAX_MEASURED_ROWS,
    CompileFolder,
    CompileJob,
    CompileResult,
    make_engine_report,
)
from tidegate_dataplane.contract import DesiredState, FailureReason, ModelFormat

log = structlog.get_logger()

Load = Callable[[LoadVersions], Awaitable[VersionRefusal | None]]
"""Loads versions; returns why the order's version does not serve, None if it does."""


@dataclass(frozen=True, slots=True)
class RefusedGraph:
    """A compiled graph that the server does not load."""

    sha256: str
    message: str


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """The result of an attempt to switch a graph.

    `graphs` are those on disk after the last successful load, None if there was none.
    """

    switched: bool
    graphs: Mapping[int, str] | None = None
    refused: RefusedGraph | None = None


class GraphSwitcher:
    """Switches the graphs of versions; the agent's loop keeps the results in its memory."""

    def __init__(
        self,
        folder: CompileFolder,
        repository: ModelRepository,
        metrics: AgentMetrics,
        load: Load,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._repository = repository
        self._metrics = metrics
        self._load = load
        self._clock = clock

    def observe_graphs(
        self, desired: DesiredState, observed: ObservedPod, memory: AgentMemory
    ) -> ObservedPod:
        """Return the observation with the graphs on disk and the compiler's result; request the compilation of a stored version."""
        graphs = self._repository.read_graphs(desired.model)
        stored = observed.stored.get(desired.model, {})
        facts = stored.get(desired.version)
        if not desired.graph_passes:
            self._folder.write_job(None)
        if not desired.graph_passes or facts is None:
            return replace(observed, graphs=graphs)
        if memory.proven == state.content_of(desired) and state.serves_order(desired, observed.server):
            # Not earlier: until the version serves, it needs the processors, and may be replaced by the one before.
            job = CompileJob(
                model=desired.model,
                version=desired.version,
                digest=facts.digest,
                source=self._repository.model_file(desired.model, desired.version),
                max_rows=min(desired.max_batch_size, MAX_MEASURED_ROWS),
                shared_inputs=desired.shared_inputs,
                engine=desired.engine,
            )
            self._folder.write_job(job, [version.digest for version in stored.values()])
        return replace(
            observed,
            graphs=graphs,
            compile_result=self._read_result(facts.digest),
            is_compiling=self._folder.count_attempts(facts.digest) > 0,
            engines=None
            if desired.engine is None
            else make_engine_report(self._folder.find_engines(facts.digest, desired.engine)),
        )

    def _read_result(self, digest: str) -> CompileResult | None:
        """Return the compiler's result, with all requests on which its graph was compared."""
        result = self._folder.read_result(digest)
        if result is None:
            return None
        compared = result.compared_requests + self._folder.count_compared(digest)
        return result.model_copy(update={"compared_requests": compared})

    async def switch_graph(self, action: SwitchGraph, observed: ObservedPod) -> SwitchResult:
        """Load the version with another graph.

        While that goes on, and if the server refuses it, the present graph answers.
        """
        order, started = action.load.order, self._clock()
        refusal, graphs = await self._load_graph(action, action.sha256, observed)
        if refusal is None:
            log.info(
                "graph_switched",
                model=order.model,
                version=order.version,
                compiled=bool(action.sha256),
                seconds=round(self._clock() - started, 3),
            )
            return SwitchResult(switched=True, graphs=graphs)
        self._metrics.graphs_refused.inc()
        log.warning("graph_refused", model=order.model, version=order.version, message=refusal.message)
        refused = await self._refuse_graph(order, action.sha256, refusal, observed) if action.sha256 else None
        _, graphs = await self._load_graph(action, "", observed)
        return SwitchResult(switched=False, graphs=graphs, refused=refused)

    async def drop_graph(
        self, order: DesiredState, refusal: VersionRefusal, observed: ObservedPod
    ) -> SwitchResult | None:
        """Go back to the published graph if the server refused the version with a compiled one; None if it had none."""
        sha256 = observed.graphs.get(order.version, "")
        if not sha256 or order.format is not ModelFormat.ONNX:
            return None
        self._metrics.graphs_refused.inc()
        refused = await self._refuse_graph(order, sha256, refusal, observed)
        try:
            await asyncio.to_thread(self._repository.install_graph, order.model, order.version, None)
        except OSError:
            return SwitchResult(switched=False, refused=refused)
        return SwitchResult(switched=True, refused=refused)

    async def _refuse_graph(
        self, order: DesiredState, sha256: str, refusal: VersionRefusal, observed: ObservedPod
    ) -> RefusedGraph:
        """Record for later agents of the pod that the server does not load a compiled graph."""
        message = (
            f"the server does not load the compiled graph ({refusal.message}): use the Triton image of this version of Tidegate, "
            "raise the memory of a replica, or remove spec.compile"
        )
        facts = observed.stored.get(order.model, {}).get(order.version)
        result = None if facts is None else self._folder.read_result(facts.digest)
        if result is not None and facts is not None and result.graph_sha256 == sha256:
            refused = result.model_copy(update={"graph_sha256": "", "shared_inputs": (), "message": message})
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._folder.write_result, facts.digest, refused)
        return RefusedGraph(sha256, message)

    async def _load_graph(
        self, action: SwitchGraph, sha256: str, observed: ObservedPod
    ) -> tuple[VersionRefusal | None, Mapping[int, str] | None]:
        """Put a graph in its place and load the version with it; return why it does not serve, or the graphs on disk."""
        order = action.load.order
        try:
            await asyncio.to_thread(self._install_graph, order, sha256, observed)
            refusal = await self._load(action.load)
        except OSError as error:
            return VersionRefusal(FailureReason.LOAD_FAILED, f"it cannot be stored: {error}"), None
        except ServerGoneError:
            return VersionRefusal(FailureReason.SERVER_ENDED, "Triton ended while it loaded it"), None
        if refusal is not None:
            return refusal, None
        return None, await asyncio.to_thread(self._repository.read_graphs, order.model)

    def _install_graph(self, order: DesiredState, sha256: str, observed: ObservedPod) -> None:
        graph = self._find_graph(order, sha256, observed) if sha256 else None
        self._repository.install_graph(order.model, order.version, graph, sha256)

    def _find_graph(self, order: DesiredState, sha256: str, observed: ObservedPod) -> Path:
        """Return the compiled graph of the order's version; raise OSError if it is damaged."""
        facts = observed.stored[order.model][order.version]
        graph = self._folder.graph_path(facts.digest)
        if hash_file(graph) != sha256:
            message = f"{graph.name} is damaged"
            raise OSError(message)
        return graph

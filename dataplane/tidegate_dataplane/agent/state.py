"""Core of the agent: from the observed state and the order to the next step. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.config_text import ModelConfig
from tidegate_dataplane.agent.formats import UNKNOWN_GRAPH
from tidegate_dataplane.agent.model_config import config_digest, render_config, with_versions
from tidegate_dataplane.agent.refusals import VersionRefusal
from tidegate_dataplane.agent.settings import OnnxBackend
from tidegate_dataplane.compiler.exchange import CompileResult
from tidegate_dataplane.contract import (
    DesiredState,
    EngineReport,
    EventStreamReport,
    FailureReason,
    ModelFormat,
    TensorSpec,
)

# First and longest pause, in seconds.
FETCH_RETRY_S = (1.0, 60.0)
SLOW_RETRY_S = (60.0, 900.0)
EVENTS_GRACE_S = 60.0
"""How long a pod waits for a stream that cannot be read before it serves without its events."""
SWITCH_RETRY_S = 60.0
"""Pause after a graph could not be switched."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """Observed state of Triton: ready versions of each model, digest and backend of each loaded configuration.

    `inputs` and `outputs` are those of the version that answers for the model of the order.
    """

    live: bool = False
    ready: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    digests: Mapping[str, str] = field(default_factory=dict[str, str])
    backends: Mapping[str, str] = field(default_factory=dict[str, str])
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    memory: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    """Bytes that versions took when they were loaded, by model, where our runner measured them."""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """Observed state of the server and the disk; `stored` maps model → version → facts.

    `broken` are models that the server reports as ready although their processes have ended; a model is reloaded when its
    mark changes (runners.py).
    """

    server: ServerState
    stored: Mapping[str, Mapping[int, ArtefactFacts]]
    broken: frozenset[str] = frozenset()
    marks: Mapping[str, str] = field(default_factory=dict[str, str])
    graphs: Mapping[int, str] = field(default_factory=dict[int, str])
    """The sha256 of the compiled graph on disk, by version of the order's model; versions without one are not in it."""
    events: tuple[EventStreamReport, ...] = ()
    """How current the events of the streams of the order's plan are, as the ingester reports it."""
    compile_result: CompileResult | None = None
    """What the compiler made of the order's version; None as long as it has not ended."""
    is_compiling: bool = False
    engines: EngineReport | None = None
    """The engines of the order's version; None if its order asks for none."""
    must_load_tables: bool = False
    """Whether a new table is ready to be loaded, or it is not known which tables the server has."""


@dataclass(frozen=True, slots=True)
class Setback:
    """An order that failed, and when it is tried again."""

    order: DesiredState
    refusal: VersionRefusal
    attempts: int
    retry_at_s: float


@dataclass(frozen=True, slots=True)
class AgentMemory:
    """What the agent remembers and cannot observe.

    `proven` is the last order whose version served: the pod falls back to it.
    `backend` is AUTO until the server has shown what can run ONNX.
    `loaded_graphs` has what the server loaded since the agent started: the sha256 of the compiled graph, empty for the
    published one, by model and version. `refused_graphs` has the reason by sha256. Before `next_switch_s` no graph is switched.
    """

    proven: DesiredState | None = None
    setbacks: tuple[Setback, ...] = ()
    backend: OnnxBackend = OnnxBackend.AUTO
    loaded_graphs: Mapping[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    refused_graphs: Mapping[str, str] = field(default_factory=dict[str, str])
    next_switch_s: float = 0.0

    def find_setback(self, order: DesiredState) -> Setback | None:
        """Return the setback of exactly this order."""
        return next((setback for setback in self.setbacks if setback.order == order), None)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes."""


@dataclass(frozen=True, slots=True)
class FetchArtefact:
    """Fetch the artefact of `order` into the repository."""

    order: DesiredState


@dataclass(frozen=True, slots=True)
class LoadVersions:
    """Load exactly `versions` of the order's model; the highest is the order's."""

    order: DesiredState
    versions: tuple[int, ...]
    config: ModelConfig


@dataclass(frozen=True, slots=True)
class SwitchGraph:
    """Load the serving version again, with the compiled graph of that sha256, or with the published one if it is empty."""

    load: LoadVersions
    sha256: str


@dataclass(frozen=True, slots=True)
class LoadTables:
    """Load the serving version again, with tables that have changed."""

    load: LoadVersions


@dataclass(frozen=True, slots=True)
class RefuseOrder:
    """Record that `order` cannot be applied."""

    order: DesiredState
    refusal: VersionRefusal


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Unload models that are no longer ordered and remove versions that are no longer needed."""

    unload: tuple[str, ...]
    remove: tuple[tuple[str, int], ...]


Action = Wait | FetchArtefact | LoadVersions | SwitchGraph | LoadTables | RefuseOrder | CleanUp


def content_of(desired: DesiredState) -> DesiredState:
    """Return the order without its sender: a new leader or an edited label does not make a new order.

    The sample log, the stream, and the graph passes with their cache are left out as well: no version is fetched or rolled back for them.
    """
    changes = {
        "epoch": 0,
        "generation": 0,
        "samples": None,
        "stream": None,
        "graph_passes": False,
        "compile_cache": "",
    }
    return desired.model_copy(update=changes)


def plan_step(
    desired: DesiredState | None,
    observed: ObservedPod,
    memory: AgentMemory,
    *,
    now_s: float,
    intra_op_threads: int | None,
) -> Action:
    """Return the next step towards `desired`, or back to the proven order while `desired` fails."""
    if desired is None:
        return Wait()
    order = content_of(desired)
    if not _is_backing_off(memory, order, now_s):
        return (
            _next_step(order, observed, memory, intra_op_threads)
            or _plan_tables(order, observed, memory, intra_op_threads)
            or _plan_graph(desired, observed, memory, now_s, intra_op_threads)
            or _plan_clean_up(order, observed)
        )
    if (
        memory.proven is not None
        and memory.proven != order
        and not _is_backing_off(memory, memory.proven, now_s)
    ):
        back = _next_step(memory.proven, observed, memory, intra_op_threads)
        if isinstance(back, LoadVersions):
            return back
    return _plan_tables(order, observed, memory, intra_op_threads) or Wait()


def _is_backing_off(memory: AgentMemory, order: DesiredState, now_s: float) -> bool:
    setback = memory.find_setback(order)
    return setback is not None and now_s < setback.retry_at_s


def _next_step(
    order: DesiredState, observed: ObservedPod, memory: AgentMemory, intra_op_threads: int | None
) -> Action | None:
    """Return the next step for `order`, None when its version serves as ordered."""
    facts = observed.stored.get(order.model, {}).get(order.version)
    if facts is None or not facts.matches_order(order):
        return FetchArtefact(order)
    config = render_config(order, facts, backend=memory.backend, intra_op_threads=intra_op_threads)
    if isinstance(config, VersionRefusal):
        return RefuseOrder(order, config)
    server = observed.server
    if not server.live:
        return Wait()
    if (
        memory.proven == order
        and serves_order(order, server)
        and server.digests.get(order.model) == config_digest(config)
        and order.model not in observed.broken
    ):
        return None
    return Wait() if _awaits_events(order, observed) else _plan_load(order, observed, config)


def _awaits_events(order: DesiredState, observed: ObservedPod) -> bool:
    """Return whether a pod must read more of its streams before it serves.

    A stream that cannot be read keeps it waiting for a while only: the other features are there.
    """
    if order.plan is None or not order.plan.streams:
        return False
    ready = {
        report.source
        for report in observed.events
        if report.caught_up or (report.problem is not None and report.failing_s >= EVENTS_GRACE_S)
    }
    return not ready.issuperset(stream.name for stream in order.plan.streams)


def _plan_load(order: DesiredState, observed: ObservedPod, config: ModelConfig) -> LoadVersions:
    versions = _versions_to_load(order, observed, config)
    mark = observed.marks.get(order.model, "")
    return LoadVersions(order, versions, with_versions(config, versions, mark=mark))


def _plan_tables(
    order: DesiredState, observed: ObservedPod, memory: AgentMemory, intra_op_threads: int | None
) -> LoadTables | None:
    """Return the step that loads new tables, also for an order that fails with the stored ones; None if there are none."""
    if not observed.must_load_tables or not observed.server.live:
        return None
    facts = observed.stored[order.model][order.version]
    config = render_config(order, facts, backend=memory.backend, intra_op_threads=intra_op_threads)
    return None if isinstance(config, VersionRefusal) else LoadTables(_plan_load(order, observed, config))


def _plan_graph(
    desired: DesiredState,
    observed: ObservedPod,
    memory: AgentMemory,
    now_s: float,
    intra_op_threads: int | None,
) -> SwitchGraph | None:
    """Return the step to the graph that the served version should have; None when it has it.

    After a start of the agent it is not known which graph the server loaded: it is told to load it once more, which does
    nothing if the file has not changed.
    """
    order = content_of(desired)
    if order.format is not ModelFormat.ONNX or not observed.server.live or now_s < memory.next_switch_s:
        return None
    on_disk = observed.graphs.get(order.version, "")
    sha256 = _choose_graph(desired, observed.compile_result, on_disk)
    if sha256 in memory.refused_graphs:
        sha256 = ""
    loaded = memory.loaded_graphs.get((order.model, order.version), None if on_disk else "")
    if sha256 == on_disk == loaded:
        return None
    facts = observed.stored[order.model][order.version]
    config = render_config(order, facts, backend=memory.backend, intra_op_threads=intra_op_threads)
    if isinstance(config, VersionRefusal):
        return None
    return SwitchGraph(_plan_load(order, observed, config), sha256)


def _choose_graph(desired: DesiredState, result: CompileResult | None, on_disk: str) -> str:
    """Return the sha256 of the graph that the version should have; until there is a result, the one that it has."""
    if not desired.graph_passes:
        return ""
    if result is not None:
        return result.graph_sha256
    return on_disk if on_disk != UNKNOWN_GRAPH else ""


def serves_order(order: DesiredState, server: ServerState) -> bool:
    """Return whether requests without a version get the order's version."""
    ready = server.ready.get(order.model, ())
    return bool(ready) and max(ready) == order.version


def _versions_to_load(order: DesiredState, observed: ObservedPod, config: ModelConfig) -> tuple[int, ...]:
    """Return the order's version and the older ones that stay loaded under the same configuration.

    Requests without a version get the highest, so newer versions are unloaded when the order rolls back.
    A version with another signature would be reloaded with a configuration that is not its own.
    """
    warm: tuple[int, ...] = ()
    if observed.server.digests.get(order.model) == config_digest(config):
        stored = observed.stored.get(order.model, {})
        ready = observed.server.ready.get(order.model, ())
        warm = tuple(sorted(version for version in ready if version < order.version and version in stored))
    kept_versions = warm[-(order.keep_versions - 1) :] if order.keep_versions > 1 else ()
    return (*kept_versions, order.version)


def _plan_clean_up(order: DesiredState, observed: ObservedPod) -> Action:
    unload = tuple(sorted(set(observed.server.ready) - {order.model}))
    needed = {order.version, *observed.server.ready.get(order.model, ())}
    # After a rollback the newer version is out of memory, and on disk: going forth again fetches nothing.
    spare = sorted(set(observed.stored.get(order.model, {})) - needed, reverse=True)
    remove = [(order.model, version) for version in spare[max(order.keep_versions - len(needed), 0) :]]
    for model, versions in observed.stored.items():
        if model != order.model:
            remove += [(model, version) for version in versions]
    return CleanUp(unload, tuple(remove)) if unload or remove else Wait()


def record_failure(
    memory: AgentMemory, order: DesiredState, refusal: VersionRefusal, *, now_s: float, is_slow: bool = False
) -> AgentMemory:
    """Record the setback and when to retry: soon if the failure may pass or the artefact is not found, else slowly.

    `is_slow` is a failure that may pass, and is not worth another download every minute.
    """
    earlier = memory.find_setback(order)
    attempts = earlier.attempts + 1 if earlier else 1
    soon = not is_slow and (refusal.is_transient or refusal.reason is FailureReason.ARTEFACT_NOT_FOUND)
    first, longest = FETCH_RETRY_S if soon else SLOW_RETRY_S
    pause = min(first * 2 ** min(attempts - 1, 20), longest)
    other_setbacks = tuple(setback for setback in memory.setbacks if setback.order != order)
    return replace(memory, setbacks=(*other_setbacks[-3:], Setback(order, refusal, attempts, now_s + pause)))


def record_success(memory: AgentMemory, order: DesiredState) -> AgentMemory:
    """Record that the order's version serves; setbacks of other orders stay."""
    other_setbacks = tuple(setback for setback in memory.setbacks if setback.order != order)
    return replace(memory, proven=order, setbacks=other_setbacks)


def record_graphs(
    memory: AgentMemory, model: str, versions: Collection[int], graphs: Mapping[int, str]
) -> AgentMemory:
    """Record that the server has just loaded these versions with the graphs on disk."""
    loaded = {(model, version): graphs.get(version, "") for version in versions}
    return replace(memory, loaded_graphs={**memory.loaded_graphs, **loaded})


def refuse_graph(memory: AgentMemory, sha256: str, message: str) -> AgentMemory:
    """Record that the server does not load a compiled graph, so that it is not tried again."""
    return replace(memory, refused_graphs={**memory.refused_graphs, sha256: message})


def learn_backend(memory: AgentMemory, server: ServerState) -> AgentMemory:
    """Derive from a loaded ONNX model what runs ONNX in this server."""
    order = memory.proven
    if memory.backend is not OnnxBackend.AUTO or order is None or order.format is not ModelFormat.ONNX:
        return memory
    loaded = server.backends.get(order.model)
    if loaded == "onnxruntime":
        return replace(memory, backend=OnnxBackend.NATIVE)
    if loaded == "python":
        return replace(memory, backend=OnnxBackend.HOSTED)
    return memory

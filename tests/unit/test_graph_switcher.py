"""The switch between a published and a compiled graph, over a real disk and a pretended load."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from builders.desired import a_desired_state
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.graph_switcher import GraphSwitcher, SwitchResult
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.refusals import VersionRefusal
from tidegate_dataplane.agent.repository import ModelRepository
from tidegate_dataplane.agent.state import (
    AgentMemory,
    LoadVersions,
    ObservedPod,
    ServerState,
    SwitchGraph,
    content_of,
)
from tidegate_dataplane.agent.triton import ServerGoneError
from tidegate_dataplane.compiler.exchange import CompileFolder, CompileResult
from tidegate_dataplane.contract import (
    BucketResult,
    DesiredState,
    EngineMode,
    EngineOrder,
    EngineReport,
    FailureReason,
)
from tidegate_dataplane.engines.engine_folder import CompiledBucket, RunnerNotes

ORDER = a_desired_state(graph_passes=True)
GRAPH = b"a faster graph"
SHA256 = hashlib.sha256(GRAPH).hexdigest()
FACTS = ArtefactFacts(uri=ORDER.uri, version=1, format=ORDER.format, digest="d1", files=())


class SwitcherWorld:
    """A pod in which version 1 serves, with a compiled graph beside it."""

    def __init__(self, folder: Path) -> None:
        self.repository = ModelRepository(folder / "models", folder / "cache")
        self.repository.prepare_folders()
        self.published = self.repository.model_file(ORDER.model, 1)
        self.published.parent.mkdir(parents=True)
        self.published.write_bytes(b"as published")
        self.compiled = CompileFolder(folder / "compile")
        made = folder / "made"
        made.write_bytes(GRAPH)
        self.compiled.write_result("d1", CompileResult(graph_sha256=SHA256), made)
        self.server_ends = False
        self.refusals: list[str] = []
        """Reasons for which the next loads are refused; an empty one is none."""
        self.switcher = GraphSwitcher(self.compiled, self.repository, AgentMetrics(), self.load)

    async def load(self, _: LoadVersions) -> VersionRefusal | None:
        if self.server_ends:
            raise ServerGoneError
        reason = self.refusals.pop(0) if self.refusals else ""
        return VersionRefusal(FailureReason.LOAD_FAILED, reason) if reason else None

    def observe(
        self, order: DesiredState = ORDER, *, serves: bool = True, proven: DesiredState = ORDER
    ) -> ObservedPod:
        ready = {order.model: (1,)} if serves else {}
        observed = ObservedPod(ServerState(live=True, ready=ready), {order.model: {1: FACTS}})
        return self.switcher.observe_graphs(order, observed, AgentMemory(proven=content_of(proven)))

    async def switch(self, sha256: str = SHA256) -> SwitchResult:
        action = SwitchGraph(LoadVersions(ORDER, (1,), {}), sha256)
        return await self.switcher.switch_graph(action, self.observe())

    def read_graphs(self) -> Mapping[int, str]:
        return self.repository.read_graphs(ORDER.model)


@pytest.fixture
def pod(tmp_path: Path) -> SwitcherWorld:
    return SwitcherWorld(tmp_path)


def test_only_a_version_that_serves_is_compiled(pod: SwitcherWorld) -> None:
    pod.observe(serves=False)
    assert pod.compiled.read_job() is None
    observed = pod.observe()
    job = pod.compiled.read_job()
    assert job is not None
    assert (job.version, job.digest) == (1, "d1")
    assert observed.compile_result == CompileResult(graph_sha256=SHA256)


def test_engines_are_ordered_with_the_graph_and_reported(pod: SwitcherWorld) -> None:
    engine = EngineOrder(engine=EngineMode.AUTO)
    order = a_desired_state(graph_passes=True, engine=engine)
    engines = pod.compiled.find_engines("d1", engine)
    shape = (("x", (3, 4)),)
    engines.write_buckets([CompiledBucket(shape, "OpenVINO", "a.engine", "00", speedup=1.5, max_error=1e-7)])
    engines.write_notes("a", RunnerNotes(unpadded=("length",)))

    observed = pod.observe(order, proven=order)

    job = pod.compiled.read_job()
    assert job is not None
    assert job.engine == engine
    assert observed.engines == EngineReport(
        buckets=(BucketResult(shape="x 3x4", engine="OpenVINO", speedup=1.5, max_error=1e-7),),
        message="padding the length changes the answers: such shapes are compiled as they are",
    )
    assert pod.observe().engines is None


def test_without_spec_compile_there_is_no_job(pod: SwitcherWorld) -> None:
    pod.observe()
    observed = pod.observe(a_desired_state())
    assert pod.compiled.read_job() is None
    assert observed.compile_result is None


async def test_a_graph_that_the_server_loads_stays(pod: SwitcherWorld) -> None:
    result = await pod.switch()
    assert result == SwitchResult(switched=True, graphs={1: SHA256})
    assert pod.read_graphs() == {1: SHA256}


async def test_after_a_refusal_the_published_graph_is_loaded_and_the_compiled_one_never_again(
    pod: SwitcherWorld,
) -> None:
    pod.refusals = ["no such operator"]
    result = await pod.switch()
    assert not result.switched
    assert result.graphs == {}
    assert result.refused is not None
    assert result.refused.sha256 == SHA256
    assert "(no such operator)" in result.refused.message
    assert pod.compiled.read_result("d1") == CompileResult(message=result.refused.message)
    assert pod.read_graphs() == {}


@pytest.mark.parametrize("damaged", [True, False])
async def test_a_damaged_graph_and_a_server_that_ends_are_refusals(
    pod: SwitcherWorld, *, damaged: bool
) -> None:
    if damaged:
        pod.compiled.graph_path("d1").write_bytes(b"cut")
    else:
        pod.server_ends = True
    result = await pod.switch()
    assert not result.switched
    assert result.refused is not None
    assert ("is damaged" if damaged else "Triton ended") in result.refused.message
    assert result.graphs == ({} if damaged else None)


async def test_a_version_that_is_refused_with_its_compiled_graph_goes_back_to_the_published_one(
    pod: SwitcherWorld,
) -> None:
    refusal = VersionRefusal(FailureReason.LOAD_FAILED, "no memory")
    assert await pod.switcher.drop_graph(ORDER, refusal, pod.observe()) is None
    await pod.switch()
    result = await pod.switcher.drop_graph(ORDER, refusal, pod.observe())
    assert result is not None
    assert result.switched
    assert result.refused is not None
    assert pod.read_graphs() == {}

"""The loop over a real disk and a pretended server: no sockets, no Triton."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from builders.desired import a_desired_state
from builders.onnx_models import a_model, a_tensor, write_artefact
from builders.pretended_server import PretendedServer
from builders.waiting import eventually
from tidegate_dataplane.agent import version_install
from tidegate_dataplane.agent.artefacts.folder_source import folder_source
from tidegate_dataplane.agent.artefacts.source import ArtefactSource, ResumePoint
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.files import OrderCheckpoint
from tidegate_dataplane.agent.loop import Agent
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.repository import ModelRepository
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.contract import AgentPhase, DesiredState, FailureReason

MODEL = a_model([a_tensor("x", ["n", 1])], [a_tensor("y", ["n", 1])])


class SlowSource:
    """A source that waits until it is let go."""

    def __init__(self, source: ArtefactSource, gate: asyncio.Event) -> None:
        self._source = source
        self._gate = gate

    @contextlib.asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncIterator[Any]:
        await self._gate.wait()
        async with self._source.open(path, resume) as download:
            yield download

    async def list(self, folder: str) -> tuple[str, ...] | None:
        return await self._source.list(folder)


class Pod:
    """One agent over `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.server = PretendedServer(folder / "repository")
        self.now_s = 0.0
        self.gate = asyncio.Event()
        self.gate.set()
        for name in ("models", "repository", "cache"):
            (folder / name).mkdir(exist_ok=True)
        self.agent = self.another_agent()

    def another_agent(self, first: DesiredState | None = None) -> Agent:
        """An agent as after a restart of its container."""
        repository = ModelRepository(self.folder / "repository", self.folder / "cache")
        repository.prepare_folders()

        def open_source(uri: ArtefactUri, _: DesiredState) -> ArtefactSource:
            return SlowSource(folder_source(uri, file_root=self.models, pvc_root=self.models), self.gate)

        settings = AgentSettings(pod_name="ctr-0", poll_s=0.01)
        checkpoint = OrderCheckpoint(self.folder / "cache")
        agent = Agent(
            settings,
            self.server,
            repository,
            checkpoint,
            open_source,
            AgentMetrics(),
            clock=lambda: self.now_s,
        )
        agent.start_with(first)
        return agent

    def order(self, version: int = 1, **changes: Any) -> DesiredState:
        return a_desired_state(**{"version": version, "uri": f"file://{self.models}/ctr", **changes})

    def publish(self, version: int, name: str = "ctr") -> None:
        write_artefact(self.models / name, version, MODEL)

    async def settle(self, turns: int = 20) -> None:
        """Take steps until there is none left."""
        for _ in range(turns):
            if not await self.agent.take_step():
                return
        pytest.fail(f"not settled after {turns} turns: {self.agent.build_report()}")

    async def serving(self, version: int) -> None:
        """Order and reach a version."""
        self.publish(version)
        assert self.agent.accept_order(self.order(version))
        await self.settle()
        assert self.agent.build_report().phase is AgentPhase.READY


@pytest_asyncio.fixture
async def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


async def test_from_an_order_to_a_served_version(pod: Pod) -> None:
    await pod.serving(1)

    report = pod.agent.build_report()
    assert (report.serving, report.loaded, report.target) == (1, (1,), 1)
    assert (pod.folder / "repository" / "ctr" / "config.pbtxt").read_text().startswith("name:")


async def test_the_servers_own_backend_is_tried_once(pod: Pod) -> None:
    await pod.serving(1)
    await pod.serving(2)

    assert [backend for _, _, backend in pod.server.loads] == ["onnxruntime", "python", "python"]


async def test_a_server_that_knows_onnx_runs_it(pod: Pod) -> None:
    pod.server.native = True
    await pod.serving(1)
    await pod.serving(2)

    assert [backend for _, _, backend in pod.server.loads] == ["onnxruntime", "onnxruntime"]


async def test_a_settled_agent_changes_nothing(pod: Pod) -> None:
    await pod.serving(1)
    loads = len(pod.server.loads)

    for _ in range(5):
        assert not await pod.agent.take_step()

    assert len(pod.server.loads) == loads


async def test_a_bad_version_is_tried_again_slowly(pod: Pod) -> None:
    await pod.serving(1)
    pod.publish(2)
    pod.server.bad = {2}
    pod.agent.accept_order(pod.order(2))
    await pod.settle()
    tried = len(pod.server.loads)
    assert pod.agent.build_report().phase is AgentPhase.FAILED

    pod.now_s += 59
    await pod.settle()
    assert len(pod.server.loads) == tried

    pod.now_s += 1
    pod.server.bad = set()
    await pod.settle()
    assert pod.agent.build_report().phase is AgentPhase.READY


async def test_a_failed_order_that_is_given_again_by_a_new_leader_is_not_tried_at_once(pod: Pod) -> None:
    await pod.serving(1)
    pod.publish(2)
    pod.server.bad = {2}
    pod.agent.accept_order(pod.order(2))
    await pod.settle()
    tried = len(pod.server.loads)

    assert pod.agent.accept_order(pod.order(2, epoch=7, generation=3))
    await pod.settle()

    assert len(pod.server.loads) == tried
    assert pod.agent.build_report().epoch == 7


async def test_an_older_leader_is_refused(pod: Pod) -> None:
    assert pod.agent.accept_order(pod.order(1, epoch=5))

    assert not pod.agent.accept_order(pod.order(2, epoch=4))
    assert pod.agent.build_report().target == 1


async def test_a_surprise_while_fetching_is_a_failure_and_not_the_end_of_the_agent(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pod.serving(1)

    async def surprised(*_: object, **__: object) -> None:
        raise ValueError("https://user:secret@example.com")

    monkeypatch.setattr(version_install, "fetch_artefact", surprised)
    pod.agent.accept_order(pod.order(2))
    await pod.settle()

    report = pod.agent.build_report()
    assert (report.serving, report.phase) == (1, AgentPhase.FAILED)
    assert report.failure is not None
    assert report.failure.reason is FailureReason.ARTEFACT_INVALID
    assert "ValueError" in report.failure.message
    assert "secret" not in report.failure.message


async def test_another_order_drops_a_fetch_that_is_under_way(pod: Pod) -> None:
    pod.publish(1)
    pod.publish(2)
    pod.gate.clear()
    pod.agent.accept_order(pod.order(1))
    step = asyncio.create_task(pod.agent.take_step())
    await eventually(
        lambda: pod.agent.build_report().phase is AgentPhase.FETCHING, what="the fetch is under way"
    )

    pod.agent.accept_order(pod.order(2))
    await step
    pod.gate.set()
    await pod.settle()

    assert pod.agent.build_report().serving == 2
    assert [versions for _, versions, _ in pod.server.loads] == [(2,), (2,)]
    assert os.listdir(pod.folder / "repository" / ".incoming") == []


async def test_the_same_order_from_a_new_leader_does_not_drop_a_fetch(pod: Pod) -> None:
    pod.publish(1)
    pod.gate.clear()
    pod.agent.accept_order(pod.order(1))
    step = asyncio.create_task(pod.agent.take_step())
    await eventually(
        lambda: pod.agent.build_report().phase is AgentPhase.FETCHING, what="the fetch is under way"
    )

    pod.agent.accept_order(pod.order(1, epoch=2))
    pod.gate.set()

    assert await step
    assert os.listdir(pod.folder / "repository" / "ctr") == ["1"]


async def test_a_server_that_ends_once_under_a_load_gets_a_second_try(pod: Pod) -> None:
    await pod.serving(1)
    pod.publish(2)
    pod.server.ends_under = {2}
    pod.agent.accept_order(pod.order(2))
    await pod.agent.take_step()
    await pod.agent.take_step()
    assert pod.agent.build_report().failure is None

    pod.server.ends_under = set()
    await pod.settle()

    assert pod.agent.build_report().phase is AgentPhase.READY


async def test_a_model_that_ends_the_server_twice_is_given_up_for_the_proven_one(pod: Pod) -> None:
    await pod.serving(1)
    pod.publish(2)
    pod.server.ends_under = {2}
    pod.agent.accept_order(pod.order(2))
    await pod.settle()

    report = pod.agent.build_report()

    assert (report.phase, report.serving) == (AgentPhase.FAILED, 1)
    assert report.failure is not None
    assert "ended twice" in report.failure.message


async def test_another_artefact_that_fails_under_the_same_number_gives_way_to_the_old_one(pod: Pod) -> None:
    await pod.serving(1)
    pod.publish(1, "other")
    pod.server.bad = {1}
    pod.agent.accept_order(pod.order(1, uri=f"file://{pod.models}/other"))
    await pod.settle()
    pod.server.bad = set()
    pod.server.configs.clear()
    await pod.settle()

    report = pod.agent.build_report()

    assert (report.phase, report.serving) == (AgentPhase.FAILED, 1)
    assert os.listdir(pod.folder / "repository" / ".incoming") == []


async def test_an_artefact_that_was_never_loaded_gives_its_place_back_to_the_old_one(pod: Pod) -> None:
    await pod.serving(1)
    pod.publish(1, "other")
    pod.agent.accept_order(pod.order(1, uri=f"file://{pod.models}/other"))
    await pod.agent.take_step()
    pod.agent.accept_order(pod.order(1))
    loads = len(pod.server.loads)
    await pod.settle()

    assert pod.agent.build_report().phase is AgentPhase.READY
    assert len(pod.server.loads) == loads


async def test_a_restarted_agent_takes_up_the_newer_order(pod: Pod) -> None:
    await pod.serving(2)
    pod.publish(1)

    older = pod.another_agent(pod.order(1, epoch=0))
    newer = pod.another_agent(pod.order(1, epoch=9))

    assert older.build_report().target == 2
    assert newer.build_report().target == 1


async def test_a_restarted_agent_loads_nothing_again(pod: Pod) -> None:
    await pod.serving(1)
    loads = len(pod.server.loads)

    pod.agent = pod.another_agent(pod.order(1))
    await pod.settle()

    assert pod.agent.build_report().phase is AgentPhase.READY
    assert len(pod.server.loads) == loads


async def test_a_version_that_lost_a_file_is_fetched_again(pod: Pod) -> None:
    await pod.serving(1)
    (pod.folder / "repository" / "ctr" / "1" / "model.onnx").unlink()

    assert await pod.agent.take_step()
    await pod.settle()

    assert (pod.folder / "repository" / "ctr" / "1" / "model.onnx").exists()


async def test_what_an_earlier_agent_left_half_done_is_removed(pod: Pod) -> None:
    (pod.folder / "repository" / ".incoming" / "half").mkdir()

    pod.another_agent()

    assert os.listdir(pod.folder / "repository" / ".incoming") == []


async def test_the_loop_runs_until_it_is_cancelled(pod: Pod) -> None:
    pod.publish(1)
    running = asyncio.create_task(pod.agent.run())
    pod.agent.accept_order(pod.order(1))
    await eventually(lambda: pod.agent.build_report().phase is AgentPhase.READY, what="version 1 serves")
    pod.server.configs.clear()
    await eventually(lambda: len(pod.server.loads) > 2, what="it is loaded again")

    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running

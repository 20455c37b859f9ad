"""Several Inferences share a server: over a real disk and a pretended server, and none affects another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from pydantic import ValidationError

from builders.desired import a_desired_state
from builders.onnx_models import a_model, a_tensor, write_artefact
from builders.pretended_server import PretendedServer
from builders.waiting import eventually
from tidegate_dataplane.agent.artefacts.folder_source import folder_source
from tidegate_dataplane.agent.artefacts.source import ArtefactSource
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.runners import RunnerRegistry
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.agent.shared_models import SharedModels
from tidegate_dataplane.contract import (
    AgentPhase,
    AgentReport,
    DesiredState,
    ModelFormat,
    OwnerKind,
    SampleOrder,
    SharedOrders,
)

MODEL = a_model([a_tensor("x", ["n", 1])], [a_tensor("y", ["n", 1])])


class SharedPod:
    """A pod that Inferences share, over `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("models", "repository", "cache"):
            (folder / name).mkdir()
        self.server = PretendedServer(folder / "repository")
        self.runners = RunnerRegistry(AgentMetrics())
        self.begin()

    def begin(self) -> None:
        """Start the agent, as after a restart of its container."""
        settings = AgentSettings(
            pod_name="spare-0",
            poll_s=0.01,
            repository_dir=self.folder / "repository",
            cache_dir=self.folder / "cache",
        )
        self.models = SharedModels(settings, self.server, self.open_source, AgentMetrics(), self.runners)
        self.task = asyncio.create_task(self.models.run_agents())

    def open_source(self, uri: ArtefactUri, _: DesiredState) -> ArtefactSource:
        root = self.folder / "models"
        return folder_source(uri, file_root=root, pvc_root=root)

    async def end(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    def order(self, model: str, version: int = 1, **changes: Any) -> DesiredState:
        write_artefact(self.folder / "models" / model, version, MODEL)
        uri = f"file://{self.folder}/models/{model}"
        return a_desired_state(
            **{"owner": f"ads/{model}", "model": model, "version": version, "uri": uri, **changes}
        )

    def accept(self, *orders: DesiredState, epoch: int = 1) -> bool:
        return self.models.accept_orders(SharedOrders(epoch=epoch, orders=orders))

    async def reports(self, what: str, **conditions: Callable[[AgentReport], bool]) -> dict[str, AgentReport]:
        """Wait until the reports are of these Inferences alone, and the condition of each is true."""
        last: dict[str, AgentReport] = {}

        def is_met() -> bool:
            last.clear()
            last.update(self.models.build_report().reports)
            owners = {f"ads/{name}" for name in conditions}
            return last.keys() == owners and all(
                condition(last[f"ads/{name}"]) for name, condition in conditions.items()
            )

        await eventually(is_met, what=what)
        return last

    def loads_of(self, model: str) -> list[tuple[int, ...]]:
        """The versions of each load of a model that its runner took."""
        return [
            versions for name, versions, backend in self.server.loads if (name, backend) == (model, "python")
        ]


def serves(version: int) -> Callable[[AgentReport], bool]:
    return lambda report: report.phase is AgentPhase.READY and report.serving == version


def is_failed(report: AgentReport) -> bool:
    return report.phase is AgentPhase.FAILED


@pytest_asyncio.fixture
async def pod(tmp_path: Path) -> AsyncIterator[SharedPod]:
    pod = SharedPod(tmp_path)
    yield pod
    await pod.end()


async def test_two_inferences_are_served_and_a_new_version_of_one_does_not_load_the_other_again(
    pod: SharedPod,
) -> None:
    assert pod.accept(pod.order("ctr"), pod.order("cvr", 3))
    reports = await pod.reports("both serve", ctr=serves(1), cvr=serves(3))
    assert {report.loaded for report in reports.values()} == {(1,), (3,)}
    assert sorted(pod.models.served_models) == ["ctr", "cvr"]

    assert pod.accept(pod.order("ctr", 2), pod.order("cvr", 3))
    await pod.reports("version 2 of ctr serves", ctr=serves(2), cvr=serves(3))
    assert pod.loads_of("cvr") == [(3,)]
    assert pod.loads_of("ctr") == [(1,), (1, 2)]


async def test_a_removed_inference_leaves_server_and_disk_and_the_other_stays(pod: SharedPod) -> None:
    pod.accept(pod.order("ctr"), pod.order("cvr"))
    await pod.reports("both serve", ctr=serves(1), cvr=serves(1))
    pod.accept(pod.order("cvr"))
    await pod.reports("cvr alone", cvr=serves(1))
    await eventually(lambda: set(pod.server.configs) == {"cvr"}, what="ctr is unloaded")
    await eventually(lambda: not (pod.folder / "repository" / "ctr").exists(), what="ctr is removed")
    assert pod.loads_of("cvr") == [(1,)]
    # The end of a runner wakes no agent that has ended.
    assert pod.runners.subscriber_count == 1

    pod.accept()
    await eventually(lambda: pod.server.configs == {}, what="nothing is loaded")
    assert pod.models.build_report().reports == {}


async def test_a_version_that_fails_affects_its_own_model_only(pod: SharedPod) -> None:
    pod.server.bad = {7}
    pod.accept(pod.order("ctr", 7), pod.order("cvr", 1))
    reports = await pod.reports("ctr has failed", ctr=is_failed, cvr=serves(1))
    failure = reports["ads/ctr"].failure
    assert failure is not None
    assert (failure.version, failure.message) == (7, "no such operator")
    pod.accept(pod.order("ctr", 8), pod.order("cvr", 1))
    await pod.reports("another version serves", ctr=serves(8), cvr=serves(1))


async def test_a_restarted_agent_knows_its_orders_and_loads_nothing_again(pod: SharedPod) -> None:
    pod.accept(pod.order("ctr"), pod.order("cvr"), epoch=4)
    await pod.reports("both serve", ctr=serves(1), cvr=serves(1))
    loads = list(pod.server.loads)
    await pod.end()
    pod.begin()
    await pod.reports("both serve", ctr=serves(1), cvr=serves(1))
    assert pod.server.loads == loads
    # An older leader is refused, also after the restart; the same one is not.
    assert not pod.accept(pod.order("cvr"), epoch=3)
    assert pod.models.build_report().epoch == 4
    assert pod.accept(pod.order("cvr"), epoch=4)


async def test_what_was_removed_while_no_agent_ran_is_removed_afterwards(pod: SharedPod) -> None:
    pod.accept(pod.order("ctr"), pod.order("cvr"))
    await pod.reports("both serve", ctr=serves(1), cvr=serves(1))
    await pod.end()
    (pod.folder / "cache" / "shared.json").write_text(
        SharedOrders(epoch=1, orders=(pod.order("cvr"),)).to_json()
    )
    pod.begin()
    await pod.reports("cvr alone", cvr=serves(1))
    assert set(pod.server.configs) == {"cvr"}


async def test_a_new_inference_may_use_the_name_of_one_that_goes(pod: SharedPod) -> None:
    pod.accept(pod.order("ctr"))
    await pod.reports("ctr serves", ctr=serves(1))
    pod.accept(pod.order("ctr", 5, owner="ads/next"))
    await pod.reports("the new one serves", next=serves(5))
    assert (pod.folder / "repository" / "ctr" / "5").is_dir()
    assert not (pod.folder / "repository" / "ctr" / "1").exists()


async def test_an_order_that_comes_while_another_model_is_removed_is_carried_out(pod: SharedPod) -> None:
    pod.accept(pod.order("ctr"))
    await pod.reports("ctr serves", ctr=serves(1))
    unload, removing, may_end = pod.server.unload_model, asyncio.Event(), asyncio.Event()

    async def unload_late(model: str) -> None:
        removing.set()
        await may_end.wait()
        await unload(model)

    pod.server.unload_model = unload_late  # type: ignore[method-assign]
    pod.accept(pod.order("cvr", 1))
    await removing.wait()
    pod.accept(pod.order("cvr", 2))
    may_end.set()
    await pod.reports("the newest version serves", cvr=serves(2))


async def test_another_model_under_the_same_name_and_version_is_loaded(pod: SharedPod) -> None:
    pod.accept(pod.order("ctr"), pod.order("cvr"))
    await pod.reports("both serve", ctr=serves(1), cvr=serves(1))
    write_artefact(pod.folder / "models" / "other", 1, MODEL)
    pod.accept(pod.order("ctr", uri=f"file://{pod.folder}/models/other"), pod.order("cvr"))
    # Nothing says that it serves while it is the model before that does.
    assert "ads/ctr" not in pod.models.build_report().reports
    await pod.reports("the other serves", ctr=serves(1), cvr=serves(1))
    assert [len(pod.loads_of(model)) for model in ("ctr", "cvr")] == [2, 1]


async def test_a_resent_order_reaches_the_agents_and_writes_no_file_of_the_pod(pod: SharedPod) -> None:
    order = pod.order("ctr")
    pod.accept(order)
    await pod.reports("it serves", ctr=serves(1))
    [lost] = [path for path in (pod.folder / "cache" / "shared" / "ads_ctr").iterdir() if path.is_file()]
    lost.unlink()
    written = (pod.folder / "cache" / "shared.json").stat()
    assert pod.accept(order)
    assert lost.is_file()
    assert (pod.folder / "cache" / "shared.json").stat().st_ino == written.st_ino
    await pod.reports("it serves", ctr=serves(1))
    assert len(pod.loads_of("ctr")) == 1


async def test_one_model_loads_at_a_time(pod: SharedPod) -> None:
    running: list[str] = []
    load = pod.server.load_version

    async def load_slowly(model: str, version: int, config: Any, *, timeout_s: float) -> Any:
        running.append(model)
        await asyncio.sleep(0.01)
        assert running == [model]
        refusal = await load(model, version, config, timeout_s=timeout_s)
        running.remove(model)
        return refusal

    pod.server.load_version = load_slowly  # type: ignore[method-assign]
    pod.accept(pod.order("ctr"), pod.order("cvr"), pod.order("ltr"))
    await pod.reports("all serve", ctr=serves(1), cvr=serves(1), ltr=serves(1))


async def test_an_unexpected_error_stays_with_its_model(pod: SharedPod) -> None:
    observe = pod.server.observe
    failures = iter(range(3))

    async def fail_at_first(model: str | None) -> Any:
        if model == "ctr" and next(failures, None) is not None:
            raise RuntimeError("unexpected")
        return await observe(model)

    pod.server.observe = fail_at_first  # type: ignore[method-assign]
    pod.accept(pod.order("ctr"), pod.order("cvr"))
    await pod.reports("both serve", ctr=serves(1), cvr=serves(1))
    assert next(failures, None) is None


async def test_metrics_have_the_inference_as_a_label(pod: SharedPod) -> None:
    pod.accept(pod.order("ctr", 2), pod.order("cvr", 3))
    await pod.reports("both serve", ctr=serves(2), cvr=serves(3))
    text = pod.models.render_metrics().decode()
    assert 'tidegate_agent_serving_version{inference="ads/ctr"} 2.0' in text
    assert 'tidegate_agent_serving_version{inference="ads/cvr"} 3.0' in text
    assert text.count("# HELP tidegate_agent_serving_version ") == 1
    assert 'tidegate_agent_runner_ends_total{reason="memory"} 0.0' in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"owner": "ads/ctr"}, "owner ads/ctr has 2 orders; a pod has one of them"),
        ({"model": "ctr"}, "model ctr has 2 orders; a pod has one of them"),
        (
            {"owner": "shop/cvr"},
            "the owners are in the namespaces ads, shop; only those of one namespace share",
        ),
        ({"format": ModelFormat.PYTHON}, "ads/cvr shares no pod: format Python runs code of its own"),
        ({"kind": OwnerKind.MODEL_ACCESS}, "ads/cvr shares no pod: it is a ModelAccess; only"),
        (
            {"samples": SampleOrder(share=0.5, url="nats://n")},
            "ads/cvr shares no pod: it logs samples; remove spec.logging",
        ),
    ],
)
def test_orders_that_cannot_share_a_pod_are_refused(changes: dict[str, Any], message: str) -> None:
    first = a_desired_state(owner="ads/ctr", model="ctr")
    second = a_desired_state(**{"owner": "ads/cvr", "model": "cvr", **changes})
    with pytest.raises(ValidationError, match=message):
        SharedOrders(epoch=1, orders=(first, second))
    assert SharedOrders(epoch=1, orders=(first,)).orders == (first,)


async def test_a_disk_that_fails_one_model_stops_no_other_and_is_tried_again(pod: SharedPod) -> None:
    obstacle = pod.folder / "cache" / "shared" / "ads_cvr"
    obstacle.parent.mkdir()
    obstacle.write_text("a file where the folder of cvr belongs")
    pod.accept(pod.order("cvr"), pod.order("ctr"))
    await pod.reports("ctr alone", ctr=serves(1))
    assert not pod.task.done()
    obstacle.unlink()
    await pod.reports("both serve", ctr=serves(1), cvr=serves(1))
    assert pod.loads_of("ctr") == [(1,)]

"""Tables that change while a pod serves them: over a real disk, with the engine behind a pretended server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import pytest_asyncio

from builders.desired import a_desired_state
from builders.features import Lookup, LookupType, a_plan, of_item, of_user, write_table
from builders.pretended_server import PretendedServer
from builders.waiting import eventually
from tidegate_dataplane.agent import table_refresh
from tidegate_dataplane.agent.artefacts.folder_source import folder_source
from tidegate_dataplane.agent.artefacts.source import ArtefactSource, ResumePoint
from tidegate_dataplane.agent.artefacts.table_convert import ConvertTable
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.config_text import ModelConfig
from tidegate_dataplane.agent.files import OrderCheckpoint
from tidegate_dataplane.agent.loop import Agent
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.refusals import VersionRefusal, WorkEndedError
from tidegate_dataplane.agent.repository import ModelRepository
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.agent.triton import ServerGoneError
from tidegate_dataplane.contract import (
    AgentPhase,
    DesiredState,
    FailureReason,
    FeaturePlan,
    FeatureTable,
    ModelFormat,
    OwnerKind,
    TableProblem,
    TableRefresh,
    TableReport,
)
from tidegate_dataplane.features.conversion import ConversionOrder, ConversionResult
from tidegate_dataplane.features.convert import convert_file
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.errors import FeatureError

INTERVAL_S = 60
LONGEST_S = INTERVAL_S * 1.1
AGE = Lookup(name="age", field=of_user("age"), type=LookupType.INT64, default="-1")
PRICE = Lookup(name="price", field=of_item("price"), type=LookupType.INT64, default="-1")


class CountingSource:
    """A folder that lists what is opened; `opened` is awaited before a file is read."""

    def __init__(self, source: ArtefactSource, opened: Callable[[str], Awaitable[None]]) -> None:
        self._source = source
        self._opened = opened

    @contextlib.asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Any, None]:
        await self._opened(path)
        async with self._source.open(path, resume) as download:
            yield download

    async def list(self, folder: str) -> tuple[str, ...] | None:
        return await self._source.list(folder)

    async def identify_content(self, path: str) -> str:
        return await self._source.identify_content(path)


async def convert_here(order: ConversionOrder) -> ConversionResult:
    """Convert as the process does, without its start."""
    return await asyncio.to_thread(convert_file, order)


class EngineServer(PretendedServer):
    """A server that answers from the tables that it read when it was last loaded."""

    engine: FeatureEngine | None = None
    ends = False
    during_load: Callable[[], Awaitable[None]] | None = None

    async def load_version(
        self, model: str, version: int, config: ModelConfig, *, timeout_s: float
    ) -> VersionRefusal | None:
        if self.ends:
            self.restart()
            raise ServerGoneError("connection reset")
        folder = self.repository / model / str(version)
        plan = FeaturePlan.model_validate_json((folder / "plan.json").read_bytes())
        paths = {table.name: folder / "tables" / f"{table.name}.table" for table in plan.tables}
        try:
            engine = FeatureEngine.from_files(plan, paths)
        except FeatureError as error:
            return VersionRefusal(FailureReason.LOAD_FAILED, str(error))
        if self.during_load is not None:
            await self.during_load()
        refusal = await super().load_version(model, version, config, timeout_s=timeout_s)
        self.engine = engine if refusal is None else self.engine
        return refusal

    def restart(self) -> None:
        """Be as after a restart of the container: nothing is loaded."""
        self.configs.clear()
        self.engine = None


class RefreshWorld:
    """A pod whose plan looks up the age of users, from a table that is refreshed every minute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        for name in ("models", "repository", "cache"):
            (folder / name).mkdir(exist_ok=True)
        self.users = self.models / "users.parquet"
        self.server = EngineServer(folder / "repository")
        self.now_s = 0.0
        self.downloads: list[str] = []
        self.on_download: Callable[[str], None] = lambda _: None
        self.slow_path = ""
        """Its downloads wait until `may_download` is set."""
        self.may_download = asyncio.Event()
        self.convert: ConvertTable = convert_here
        self.plan = a_plan(AGE, tables=[self.make_table("profiles", "user", self.users)])
        self.agent = self.restart_agent()

    def make_table(
        self, name: str, entity: str, path: Path, percent: int = 50, most_percent: int | None = None
    ) -> FeatureTable:
        refresh = TableRefresh(
            interval_ms=INTERVAL_S * 1000, min_keys_percent=percent, max_keys_percent=most_percent
        )
        return FeatureTable(name=name, entity=entity, uri=f"file://{path}", refresh=refresh)

    async def serve_items(self) -> Path:
        """Serve the price of items too; return their table, and forget what was downloaded until now."""
        items = write_table(self.models / "items.parquet", item_id=["a"], price=[7])
        tables = [
            self.make_table("profiles", "user", self.users),
            self.make_table("catalogue", "item", items),
        ]
        self.plan = a_plan(AGE, PRICE, tables=tables)
        self.publish_users(1)
        self.accept_order()
        await self.settle()
        self.downloads.clear()
        return items

    def restart_agent(self) -> Agent:
        repository = ModelRepository(self.folder / "repository", self.folder / "cache")
        repository.prepare_folders()

        async def record_download(path: str) -> None:
            self.downloads.append(path)
            self.on_download(path)
            if path == self.slow_path:
                await self.may_download.wait()

        def open_source(uri: ArtefactUri, _: DesiredState) -> ArtefactSource:
            folder = folder_source(uri, file_root=self.models, pvc_root=self.models)
            return CountingSource(folder, record_download)

        self.metrics = AgentMetrics()
        self.agent = Agent(
            AgentSettings(pod_name="features-0", poll_s=0.01),
            self.server,
            repository,
            OrderCheckpoint(self.folder / "cache"),
            open_source,
            self.metrics,
            clock=lambda: self.now_s,
            convert=lambda order: self.convert(order),
        )
        self.agent.start_with(None)
        return self.agent

    def publish_users(self, age: int, keys: int = 10, **columns: Any) -> None:
        """Publish a table in which every user has this age, as one rename."""
        values = {"user_id": list(range(keys)), "age": [age] * keys, **columns}
        write_table(self.models / "part", **values).replace(self.users)

    def accept_order(self, **update: Any) -> None:
        order = a_desired_state(
            kind=OwnerKind.FEATURE_COMPUTE, format=ModelFormat.FEATURES, uri="", plan=self.plan
        )
        assert self.agent.accept_order(order.model_copy(update=update))

    async def settle(self, turns: int = 20) -> None:
        """Take steps, and check what is due, until there is nothing left to do."""
        for _ in range(turns):
            took_step = await self.agent.take_step()
            await self.agent.tables.check_tables()
            if not took_step and not await self.agent.take_step():
                return
        pytest.fail(f"not settled after {turns} turns: {self.agent.build_report()}")

    async def pass_interval(self) -> None:
        self.now_s += LONGEST_S
        await self.settle()

    def answer(self) -> list[int]:
        """The ages that users 0 to 2 are answered with."""
        assert self.server.engine is not None
        values = self.server.engine.compute_features({"user_id": np.arange(3, dtype=np.int64)})
        return values["age"][:, 0].tolist()

    @property
    def table(self) -> TableReport:
        (report,) = self.agent.build_report().tables
        return report

    def count_refusals(self, reason: TableProblem) -> float | None:
        labels = {"source": "profiles", "reason": reason}
        return self.metrics.registry.get_sample_value("tidegate_agent_table_refusals_total", labels)

    def is_refused(self, reason: TableProblem) -> float | None:
        """The gauge of a scrape after the agent's next step."""
        labels = {"source": "profiles", "reason": reason}
        return self.metrics.registry.get_sample_value("tidegate_agent_table_refused", labels)


@pytest_asyncio.fixture
async def pod(tmp_path: Path) -> RefreshWorld:
    """A pod that serves age 1 for ten users."""
    world = RefreshWorld(tmp_path)
    world.publish_users(1)
    world.accept_order()
    await world.settle()
    assert world.answer() == [1, 1, 1]
    return world


async def test_a_changed_table_is_loaded_at_the_next_check(pod: RefreshWorld) -> None:
    first = pod.table
    pod.publish_users(2, keys=12)
    pod.now_s += INTERVAL_S * 0.89
    await pod.settle()
    assert pod.answer() == [1, 1, 1]

    await pod.pass_interval()

    assert pod.answer() == [2, 2, 2]
    assert (first.keys, pod.table.keys) == (10, 12)
    assert pod.table.loaded_s > first.loaded_s
    assert pod.table.problem is None
    assert list((pod.folder / "repository" / ".incoming").iterdir()) == []
    # An increase of refusals needs a series before the first one.
    assert {pod.count_refusals(reason) for reason in TableProblem} == {0}
    value = pod.metrics.registry.get_sample_value
    assert value("tidegate_agent_table_keys", {"source": "profiles"}) == 12
    assert (
        value("tidegate_agent_table_loaded_timestamp_seconds", {"source": "profiles"}) == pod.table.loaded_s
    )


async def test_an_unchanged_table_is_neither_downloaded_nor_loaded(pod: RefreshWorld) -> None:
    downloads, loads = len(pod.downloads), len(pod.server.loads)

    for _ in range(5):
        await pod.pass_interval()

    assert (len(pod.downloads), len(pod.server.loads)) == (downloads, loads)


async def test_the_same_content_written_again_is_not_loaded(pod: RefreshWorld) -> None:
    before, loads = pod.table, len(pod.server.loads)
    pod.users.with_name("copy").write_bytes(pod.users.read_bytes())
    pod.users.with_name("copy").replace(pod.users)

    await pod.pass_interval()
    downloads = len(pod.downloads)
    await pod.pass_interval()

    assert len(pod.downloads) == downloads
    assert len(pod.server.loads) == loads
    assert pod.table == before


async def test_a_table_without_most_keys_is_refused_once_with_both_numbers(pod: RefreshWorld) -> None:
    pod.publish_users(2, keys=4)
    await pod.pass_interval()
    downloads = len(pod.downloads)
    await pod.pass_interval()

    assert pod.answer() == [1, 1, 1]
    assert pod.agent.build_report().phase is AgentPhase.READY
    assert (pod.table.problem, pod.table.keys) == (TableProblem.TABLE_REFUSED, 10)
    assert pod.table.message == (
        "table 'profiles' has 4 keys and the loaded one 10, so it has less than 50 % of them (minKeysPercent): "
        "publish the complete table, or lower minKeysPercent"
    )
    assert len(pod.downloads) == downloads
    assert pod.count_refusals(TableProblem.TABLE_REFUSED) == 2
    assert [pod.is_refused(reason) for reason in TableProblem] == [1, 0]

    pod.publish_users(3, keys=5)
    await pod.pass_interval()

    assert pod.answer() == [3, 3, 3]
    assert (pod.table.problem, pod.table.message) == (None, "")
    assert [pod.is_refused(reason) for reason in TableProblem] == [0, 0]


async def test_a_table_with_too_many_keys_is_refused_with_both_numbers(pod: RefreshWorld) -> None:
    pod.plan = a_plan(AGE, tables=[pod.make_table("profiles", "user", pod.users, 0, 200)])
    pod.accept_order()
    await pod.settle()
    pod.publish_users(2, keys=21)
    await pod.pass_interval()

    assert pod.answer() == [1, 1, 1]
    assert (pod.table.problem, pod.table.keys) == (TableProblem.TABLE_REFUSED, 10)
    assert pod.table.message == (
        "table 'profiles' has 21 keys and the loaded one 10, so it has more than 200 % of them (maxKeysPercent): "
        "publish the right table, or raise maxKeysPercent"
    )

    pod.publish_users(3, keys=20)
    await pod.pass_interval()
    assert pod.answer() == [3, 3, 3]
    assert (pod.table.problem, pod.table.keys) == (None, 20)


async def test_a_table_may_grow_without_a_bound_and_after_an_empty_one(pod: RefreshWorld) -> None:
    pod.publish_users(2, keys=500)
    await pod.pass_interval()
    assert (pod.table.problem, pod.table.keys) == (None, 500)

    pod.plan = a_plan(AGE, tables=[pod.make_table("profiles", "user", pod.users, 0, 100)])
    pod.accept_order()
    await pod.settle()
    nothing = pa.array([], pa.int64())
    write_table(pod.models / "part", user_id=nothing, age=nothing).replace(pod.users)
    await pod.pass_interval()
    assert (pod.table.problem, pod.table.keys) == (None, 0)
    pod.publish_users(4, keys=3)
    await pod.pass_interval()
    assert (pod.table.problem, pod.table.keys) == (None, 3)


async def test_a_table_whose_load_outlasts_the_interval_is_loaded_once(pod: RefreshWorld) -> None:
    async def check_again() -> None:
        pod.now_s += LONGEST_S
        await pod.agent.tables.check_tables()

    pod.server.during_load = check_again
    loads, downloads = len(pod.server.loads), len(pod.downloads)
    pod.publish_users(2)

    await pod.pass_interval()

    assert pod.answer() == [2, 2, 2]
    assert (len(pod.server.loads) - loads, len(pod.downloads) - downloads) == (1, 1)


async def test_with_zero_percent_any_number_of_keys_is_taken(tmp_path: Path) -> None:
    pod = RefreshWorld(tmp_path)
    pod.plan = a_plan(AGE, tables=[pod.make_table("profiles", "user", pod.users, percent=0)])
    pod.publish_users(1)
    pod.accept_order()
    await pod.settle()

    pod.publish_users(2, keys=1)
    await pod.pass_interval()

    assert pod.answer() == [2, -1, -1]


def write_nothing_readable(pod: RefreshWorld) -> None:
    pod.users.write_bytes(b"PAR1 and no more")


def drop_a_column(pod: RefreshWorld) -> None:
    write_table(pod.users, user_id=list(range(10)), years=[2] * 10)


def repeat_keys(pod: RefreshWorld) -> None:
    pod.publish_users(2, user_id=[1] * 10)


def change_a_type(pod: RefreshWorld) -> None:
    write_table(pod.users, user_id=list(range(10)), age=["two"] * 10)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (write_nothing_readable, "table 'profiles' cannot be read as Parquet"),
        (drop_a_column, "table 'profiles' has no column 'age'; it has user_id, years"),
        (repeat_keys, "table 'profiles' has 1 keys in more than one row, such as 1"),
        (change_a_type, "table 'profiles', column 'age' holds string, and integers are needed"),
    ],
)
async def test_a_bad_table_changes_nothing(
    pod: RefreshWorld, spoil: Callable[[RefreshWorld], None], message: str
) -> None:
    before = pod.table
    spoil(pod)
    await pod.pass_interval()
    downloads = len(pod.downloads)
    await pod.pass_interval()

    assert pod.answer() == [1, 1, 1]
    assert pod.table.problem is TableProblem.TABLE_REFUSED
    assert message in pod.table.message
    assert (pod.table.keys, pod.table.loaded_s) == (before.keys, before.loaded_s)
    assert pod.agent.build_report().failure is None
    assert len(pod.downloads) == downloads

    pod.server.restart()
    await pod.settle()
    assert pod.answer() == [1, 1, 1]


async def test_a_table_for_which_the_disk_is_too_small_is_named_and_the_old_one_serves(
    pod: RefreshWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(pod.folder)
    usage = usage._replace(total=10_000_000, free=1_005_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    pod.publish_users(2)
    await pod.pass_interval()
    downloads = len(pod.downloads)
    await pod.pass_interval()

    assert pod.answer() == [1, 1, 1]
    assert pod.table.problem is TableProblem.TABLE_UNREACHABLE
    assert pod.table.message == (
        "table 'profiles' needs 65,944 bytes of disk when it is converted, and 5,000 are free beside a reserve of 10% of the "
        "disk: raise spec.tableStorage, free space on the node, or read fewer columns of the table"
    )
    assert pod.agent.build_report().phase is AgentPhase.READY
    assert list((pod.folder / "repository" / ".incoming").iterdir()) == []
    # Nothing is downloaded while the disk has no room for it.
    assert len(pod.downloads) == downloads

    monkeypatch.undo()
    await pod.pass_interval()
    assert pod.answer() == [2, 2, 2]
    assert pod.table.problem is None


async def test_a_table_whose_conversion_is_killed_twice_is_refused_until_it_changes(
    pod: RefreshWorld,
) -> None:
    async def be_killed(_: ConversionOrder) -> ConversionResult:
        raise WorkEndedError("the conversion was ended by signal 9")

    pod.convert = be_killed
    pod.publish_users(2)
    await pod.pass_interval()
    # Once, it may be the other work of the node.
    await pod.pass_interval()
    downloads = len(pod.downloads)
    await pod.pass_interval()

    assert pod.answer() == [1, 1, 1]
    assert (pod.table.problem, len(pod.downloads)) == (TableProblem.TABLE_REFUSED, downloads)

    # What fails meanwhile does not stand for the reason.
    aside = pod.users.rename(pod.models / "aside")
    await pod.pass_interval()
    assert pod.table.problem is TableProblem.TABLE_UNREACHABLE
    aside.rename(pod.users)
    await pod.pass_interval()
    assert (pod.table.problem, pod.table.message) == (
        TableProblem.TABLE_REFUSED,
        "the conversion was ended by signal 9",
    )

    pod.convert = convert_here
    pod.publish_users(3)
    await pod.pass_interval()
    assert pod.answer() == [3, 3, 3]


async def test_a_table_whose_conversion_is_killed_once_is_converted_at_the_next_check(
    pod: RefreshWorld,
) -> None:
    async def be_killed(_: ConversionOrder) -> ConversionResult:
        pod.convert = convert_here
        raise WorkEndedError("the conversion was ended by signal 9")

    pod.convert = be_killed
    pod.publish_users(2)
    await pod.pass_interval()
    assert pod.answer() == [1, 1, 1]
    await pod.pass_interval()
    assert pod.answer() == [2, 2, 2]


async def test_tables_that_are_larger_than_allowed_when_converted_are_refused(pod: RefreshWorld) -> None:
    (table,) = (pod.folder / "repository").rglob("*.table")
    limit = table.stat().st_size
    for update, message in (
        (
            {"max_artefact_bytes": limit},
            f"{limit:,} for all tables (models.maxArtefactBytes): set spec.tableStorage",
        ),
        (
            {"max_table_bytes": limit},
            f"{limit:,} for all tables (spec.tableStorage): raise spec.tableStorage",
        ),
    ):
        pod.publish_users(1)
        pod.accept_order(**update)
        await pod.settle()
        assert pod.answer() == [1, 1, 1]

        pod.publish_users(2, keys=100)
        await pod.pass_interval()
        assert pod.answer() == [1, 1, 1]
        assert pod.table.problem is TableProblem.TABLE_REFUSED
        assert message in pod.table.message


async def test_a_later_table_is_refreshed_when_converted_tables_are_larger_than_their_downloads(
    tmp_path: Path,
) -> None:
    pod = RefreshWorld(tmp_path)
    pod.publish_users(1, keys=20_000)
    items = write_table(pod.models / "items.parquet", item_id=["a"], price=[7])
    tables = [pod.make_table("profiles", "user", pod.users), pod.make_table("catalogue", "item", items)]
    pod.plan = a_plan(AGE, PRICE, tables=tables)
    downloaded = pod.users.stat().st_size + items.stat().st_size
    pod.accept_order(max_artefact_bytes=downloaded + 1000, max_table_bytes=1 << 30)
    await pod.settle()
    stored = (pod.folder / "repository").rglob("*.table")
    assert sum(path.stat().st_size for path in stored) > downloaded + 1000

    for price in (8, 9):
        write_table(pod.models / "part", item_id=["a"], price=[price]).replace(items)
        await pod.pass_interval()
        assert [report.message for report in pod.agent.build_report().tables] == ["", ""]
        assert pod.server.engine is not None
        inputs = {"user_id": np.array([1]), "item_id": np.array([b"a"], dtype=object)}
        assert pod.server.engine.compute_features(inputs)["price"].item() == price

    write_table(pod.models / "part", item_id=["a" * 2000, "b"], price=[1, 2]).replace(items)
    await pod.pass_interval()
    assert "(models.maxArtefactBytes)" in pod.agent.build_report().tables[1].message


@pytest.mark.parametrize("content", [b"", b"TGTABLE1", None])
async def test_a_converted_file_that_is_damaged_is_made_again(
    pod: RefreshWorld, content: bytes | None
) -> None:
    (path,) = (pod.folder / "repository").rglob("*.table")
    intact = path.read_bytes()
    path.unlink()
    # Of the right size, and without the header that is written last.
    path.write_bytes(bytes(len(intact)) if content is None else content)
    downloads = len(pod.downloads)
    pod.server.restart()
    await pod.settle()

    assert len(pod.downloads) == downloads + 1
    assert path.read_bytes() == intact
    assert pod.answer() == [1, 1, 1]


async def test_a_source_that_does_not_have_it_is_named_and_asked_again(pod: RefreshWorld) -> None:
    aside = pod.users.rename(pod.models / "aside")
    await pod.pass_interval()

    assert pod.table.problem is TableProblem.TABLE_UNREACHABLE
    assert pod.table.message.startswith("table 'profiles': there is no file://")
    assert pod.count_refusals(TableProblem.TABLE_UNREACHABLE) == 1
    assert [pod.is_refused(reason) for reason in TableProblem] == [0, 1]

    aside.rename(pod.users)
    await pod.pass_interval()
    assert pod.table.problem is None
    assert pod.answer() == [1, 1, 1]


async def test_a_table_that_changes_while_it_is_downloaded_is_fetched_again(pod: RefreshWorld) -> None:
    pod.publish_users(2)
    pod.on_download = lambda _: os.utime(pod.users, ns=(1, 1))
    await pod.pass_interval()

    assert pod.answer() == [1, 1, 1]
    assert "changed while it was downloaded" in pod.table.message

    pod.on_download = lambda _: None
    await pod.pass_interval()
    assert pod.answer() == [2, 2, 2]
    assert pod.table.problem is None


async def end_server_while_it_loads(pod: RefreshWorld) -> None:
    """Let the server end under the next load, and start again."""
    pod.server.ends = True
    pod.now_s += LONGEST_S
    await pod.agent.tables.check_tables()
    assert not await pod.agent.take_step()
    pod.server.ends = False
    await pod.settle()


async def test_a_server_that_ends_while_it_loads_gets_the_old_table(pod: RefreshWorld) -> None:
    pod.publish_users(2)
    await end_server_while_it_loads(pod)

    assert pod.answer() == [1, 1, 1]
    assert "Triton ended while it loaded the new table" in pod.table.message

    await pod.pass_interval()
    assert pod.answer() == [2, 2, 2]


async def test_a_table_under_which_the_server_ends_twice_is_not_loaded_again(pod: RefreshWorld) -> None:
    pod.publish_users(2)
    await end_server_while_it_loads(pod)
    await end_server_while_it_loads(pod)
    loads, downloads = len(pod.server.loads), len(pod.downloads)

    await pod.pass_interval()

    assert pod.answer() == [1, 1, 1]
    assert (len(pod.server.loads), len(pod.downloads)) == (loads, downloads)
    assert pod.table.problem is TableProblem.TABLE_REFUSED


async def test_an_agent_that_starts_again_lets_the_stored_table_be_loaded_once(pod: RefreshWorld) -> None:
    loads = len(pod.server.loads)
    pod.restart_agent()
    await pod.settle()
    assert len(pod.server.loads) == loads + 1

    pod.publish_users(2)
    await pod.pass_interval()
    assert pod.answer() == [2, 2, 2]


async def test_a_pod_that_started_with_a_bad_table_takes_the_next_one(tmp_path: Path) -> None:
    pod = RefreshWorld(tmp_path)
    repeat_keys(pod)
    pod.accept_order()
    await pod.settle()
    assert pod.agent.build_report().phase is AgentPhase.FAILED

    pod.publish_users(2, keys=3)
    await pod.pass_interval()

    assert pod.answer() == [2, 2, 2]
    assert pod.agent.build_report().phase is AgentPhase.READY
    assert pod.agent.build_report().failure is None


def order_other_users(pod: RefreshWorld) -> None:
    """Order a plan whose table has the same name at another place, with age 7 for ten users."""
    other = write_table(pod.models / "other.parquet", user_id=list(range(10)), age=[7] * 10)
    pod.plan = a_plan(AGE, tables=[pod.make_table("profiles", "user", other)])
    pod.accept_order()


async def test_a_refusal_ends_with_the_order_of_its_table(pod: RefreshWorld) -> None:
    pod.publish_users(2, keys=4)
    await pod.pass_interval()
    assert pod.table.problem is TableProblem.TABLE_REFUSED

    order_other_users(pod)
    await pod.settle()

    assert pod.answer() == [7, 7, 7]
    assert (pod.table.problem, pod.table.message, pod.table.keys) == (None, "", 10)
    assert pod.is_refused(TableProblem.TABLE_REFUSED) == 0


async def test_a_table_that_waits_to_be_loaded_is_dropped_with_another_order(pod: RefreshWorld) -> None:
    pod.publish_users(2)
    pod.now_s += LONGEST_S
    await pod.agent.tables.check_tables()

    order_other_users(pod)
    await pod.settle()
    await pod.pass_interval()

    assert pod.answer() == [7, 7, 7]
    assert pod.table.problem is None
    assert list((pod.folder / "repository" / ".incoming").iterdir()) == []


@pytest.mark.parametrize("age", [2, 1])
async def test_a_table_whose_download_outlasts_its_order_is_dropped(pod: RefreshWorld, age: int) -> None:
    """With age 1, the content is that of the loaded table."""
    pod.publish_users(age)
    pod.now_s += LONGEST_S
    pod.slow_path = "users.parquet"
    check = asyncio.create_task(pod.agent.tables.check_tables())
    await eventually(lambda: pod.downloads.count("users.parquet") == 2, "the download begins")

    order_other_users(pod)
    while await pod.agent.take_step():
        pass
    assert pod.answer() == [7, 7, 7]
    downloads, loads = len(pod.downloads), len(pod.server.loads)
    pod.may_download.set()
    await check
    await pod.settle()

    assert pod.answer() == [7, 7, 7]
    assert (len(pod.downloads), len(pod.server.loads)) == (downloads, loads)
    assert list((pod.folder / "repository" / ".incoming").iterdir()) == []


async def test_a_table_that_is_fetched_in_the_moment_of_another_order_is_dropped(
    pod: RefreshWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run_before_order(changed: asyncio.Event, work: Coroutine[Any, Any, Any]) -> Any:
        fetched = await work
        order_other_users(pod)
        while await pod.agent.take_step():
            pass
        return fetched

    monkeypatch.setattr(table_refresh, "run_unless", run_before_order)
    pod.publish_users(2)
    pod.now_s += LONGEST_S
    await pod.agent.tables.check_tables()
    monkeypatch.undo()
    await pod.settle()

    assert pod.answer() == [7, 7, 7]
    assert pod.table.problem is None
    assert list((pod.folder / "repository" / ".incoming").iterdir()) == []


async def test_a_conversion_ends_with_its_order(pod: RefreshWorld) -> None:
    ends: list[str] = []

    async def convert_for_ever(_: ConversionOrder) -> ConversionResult:
        try:
            ends.append("begun")
            return await asyncio.Future()
        finally:
            ends.append("ended")

    pod.convert = convert_for_ever
    pod.publish_users(2)
    pod.now_s += LONGEST_S
    check = asyncio.create_task(pod.agent.tables.check_tables())
    await eventually(lambda: ends == ["begun"], "the conversion begins")
    await pod.agent.take_step()
    assert ends == ["begun"]

    pod.convert = convert_here
    order_other_users(pod)
    await pod.agent.take_step()
    await check

    assert ends == ["begun", "ended"]
    await pod.settle()
    assert pod.answer() == [7, 7, 7]
    assert list((pod.folder / "repository" / ".incoming").iterdir()) == []


async def test_a_table_of_another_order_is_checked_after_a_whole_interval(pod: RefreshWorld) -> None:
    pod.now_s += INTERVAL_S * 0.8
    order_other_users(pod)
    await pod.settle()
    write_table(pod.models / "other.parquet", user_id=list(range(10)), age=[8] * 10)

    pod.now_s += INTERVAL_S * 0.8
    await pod.settle()
    assert pod.answer() == [7, 7, 7]

    pod.now_s += INTERVAL_S * 0.3
    await pod.settle()
    assert pod.answer() == [8, 8, 8]


async def test_only_the_changed_table_is_downloaded(tmp_path: Path) -> None:
    pod = RefreshWorld(tmp_path)
    await pod.serve_items()
    (items,) = (pod.folder / "repository").rglob("catalogue.table")
    inode = items.stat().st_ino

    pod.publish_users(2)
    await pod.pass_interval()

    assert pod.downloads == ["users.parquet"]
    assert items.stat().st_ino == inode
    assert pod.server.engine is not None
    inputs = {"user_id": np.array([1]), "item_id": np.array([b"a"], dtype=object)}
    answer = pod.server.engine.compute_features(inputs)
    assert (answer["age"].item(), answer["price"].item()) == (2, 7)
    assert [report.source for report in pod.agent.build_report().tables] == ["profiles", "catalogue"]


async def test_two_tables_written_again_with_the_same_content_are_downloaded_once(tmp_path: Path) -> None:
    pod = RefreshWorld(tmp_path)
    items = await pod.serve_items()

    for path in (pod.users, items):
        os.utime(path, ns=(1, 1))
    await pod.pass_interval()
    await pod.pass_interval()

    assert pod.downloads == ["users.parquet", "items.parquet"]


async def test_a_table_without_refresh_is_never_looked_at_again(tmp_path: Path) -> None:
    pod = RefreshWorld(tmp_path)
    table = pod.plan.tables[0].model_copy(update={"refresh": None})
    pod.plan = a_plan(AGE, tables=[table])
    pod.publish_users(1)
    pod.accept_order()
    await pod.settle()

    pod.publish_users(2)
    await pod.pass_interval()

    assert pod.answer() == [1, 1, 1]
    assert pod.agent.build_report().tables == ()

"""Tables and results in an S3-compatible store: read by range, one plan whoever begins, and each row once."""

from __future__ import annotations

import io
import os
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import S3Store

from builders.batch_world import FakeModel, World, pairs
from fixtures.object_store import CREDENTIALS
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.object_store import ObjectSource
from tidegate_dataplane.agent.artefacts.uri import parse_uri
from tidegate_dataplane.agent.refusals import ArtefactError

pytestmark = pytest.mark.usefixtures("bucket")


class Lake:
    """A prefix of the bucket."""

    def __init__(self, endpoint: str) -> None:
        self.prefix = uuid.uuid4().hex
        options: Any = {"allow_http": True}
        self.store = S3Store(
            "models",
            config={
                "access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
                "secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
                "region": CREDENTIALS["AWS_REGION"],
                "endpoint": endpoint,
            },
            client_options=options,
        )

    def write(self, name: str, columns: dict[str, Any]) -> None:
        content = io.BytesIO()
        pq.write_table(pa.table(columns), content, row_group_size=40)
        obstore.put(self.store, f"{self.prefix}/table/{name}", content.getvalue())

    def names(self) -> Sequence[str]:
        found = obstore.list(self.store, prefix=f"{self.prefix}/scores").collect()
        return sorted(one["path"].removeprefix(f"{self.prefix}/scores/v1-abc/") for one in found)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name in self.names():
            if name.startswith("part-"):
                content = bytes(obstore.get(self.store, f"{self.prefix}/scores/v1-abc/{name}").bytes())
                found += pq.read_table(io.BytesIO(content)).to_pylist()
        return found

    def world(self, folder: Path) -> World:
        return World(folder, environment=dict(os.environ))

    def order(self, **changes: Any) -> dict[str, Any]:
        root = f"s3://models/{self.prefix}"
        return {"source": f"{root}/table", "sink": f"{root}/scores", "rows_per_file": 50, **changes}


@pytest.fixture
def lake(endpoint: str) -> Lake:
    return Lake(endpoint)


def test_a_table_in_a_bucket_is_scored_into_another_folder_of_it(lake: Lake, tmp_path: Path) -> None:
    lake.write("a.parquet", pairs(130))
    lake.write("more/b.parquet", pairs(70, start=130))
    for index in range(2):
        lake.world(tmp_path).score(index, **lake.order(shards=2))
    assert lake.rows() == [{"id": one, "sum": one + 1.0} for one in range(200)]
    assert "_SUCCESS" in lake.names()

    # What is there is not done again, after a file is gone no more than its rows.
    world = lake.world(tmp_path)
    world.score(1, **lake.order(shards=2))
    assert world.model.requests == []
    obstore.delete(lake.store, f"{lake.prefix}/scores/v1-abc/part-00001-00001.parquet")
    world.score(1, **lake.order(shards=2))
    assert [one for request in world.model.requests for one in request] == list(range(150, 200))


def test_pods_that_begin_at_once_agree_on_one_plan(lake: Lake, tmp_path: Path) -> None:
    """Each sees another list of files, since one is added between their looks; the first that writes it decides."""
    lake.write("a.parquet", pairs(90))
    barrier, failures = threading.Barrier(2), list[BaseException]()

    def pod(index: int) -> None:
        world = lake.world(tmp_path / str(index))
        (tmp_path / str(index)).mkdir()
        try:
            barrier.wait(30)
            if index == 1:
                lake.write("b.parquet", pairs(60, start=90))
            world.score(index, **lake.order(shards=2))
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=pod, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    rows = [row["id"] for row in lake.rows()]
    assert rows in (list(range(90)), list(range(150)))


async def test_an_object_is_made_once_and_a_missing_one_is_named(lake: Lake) -> None:
    uri = parse_uri(f"s3://models/{lake.prefix}")
    source = ObjectSource(uri, SecretCredentials(environment=dict(os.environ)), allow_loopback=True)
    assert await source.create("one", b"first")
    assert not await source.create("one", b"second")
    assert await source.read_range("one", 1, 3) == b"irs"
    assert await source.size("one") == 5
    with pytest.raises(ArtefactError, match=f"there is no s3://models/{lake.prefix}/other"):
        await source.size("other")


def test_a_store_that_does_not_let_us_write_says_so(lake: Lake, tmp_path: Path) -> None:
    lake.write("a.parquet", pairs(3))
    with pytest.raises(ArtefactError, match="s3://nowhere/scores/v1-abc"):
        lake.world(tmp_path).score(0, **{**lake.order(), "sink": "s3://nowhere/scores"})


def test_the_model_is_asked_each_row_once(lake: Lake, tmp_path: Path) -> None:
    lake.write("a.parquet", pairs(101))
    world = World(tmp_path, FakeModel(rows=7), environment=dict(os.environ))
    world.score(0, **lake.order())
    assert sorted(one for request in world.model.requests for one in request) == list(range(101))

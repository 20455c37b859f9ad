"""A table, a claim or bucket for results, and a model of ours, for shards that are scored in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.nearline.message import InferenceTensor
from tidegate_dataplane.agent.nearline.model import ModelSignature, NoAnswerError, TritonModel
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.batch.feature_sources import FeatureSources
from tidegate_dataplane.batch.metrics import BatchMetrics
from tidegate_dataplane.batch.results import ResultsFolder, ShardReport
from tidegate_dataplane.batch.shard import ShardScorer
from tidegate_dataplane.batch.store import open_sink, open_source
from tidegate_dataplane.contract import BatchOrder, TensorSpec


@dataclass
class FakeModel:
    """Adds up each row's values; `fails` says what happens instead, by the rows' first values."""

    specs: Sequence[TensorSpec] = (TensorSpec(name="x", dtype="FP32", shape=(-1, 2)),)
    outputs: Sequence[TensorSpec] = (TensorSpec(name="sum", dtype="FP32", shape=(-1, 1)),)
    rows: int = 4
    fails: Callable[[list[float]], NoAnswerError | None] = lambda _: None
    requests: list[list[float]] = field(default_factory=list[list[float]])

    async def is_ready(self) -> bool:
        return True

    async def get_signature(self) -> ModelSignature:
        return ModelSignature(tuple(self.specs), tuple(self.outputs), self.rows)

    async def infer_outputs(
        self, request_id: str, inputs: Sequence[InferenceTensor]
    ) -> tuple[str, tuple[InferenceTensor, ...]]:
        del request_id
        first = [float(row.reshape(-1)[0]) for row in inputs[0].array]
        self.requests.append(first)
        error = self.fails(first)
        if error is not None:
            raise error
        total = sum(one.array.reshape(len(first), -1).sum(axis=1) for one in inputs).astype(np.float32)
        return "1", (InferenceTensor("sum", "FP32", total.reshape(-1, 1)),)


@dataclass
class World:
    """A table, a claim for results, and a model."""

    folder: Path
    model: FakeModel = field(default_factory=FakeModel)
    has_model: bool = True
    """Whether rows go to the model."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])

    def write(self, name: str, columns: dict[str, Any], row_group: int = 3) -> None:
        path = self.folder / "models" / "table" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path, row_group_size=row_group)

    def score(self, index: int = 0, **changes: Any) -> ShardReport:
        order = BatchOrder.model_validate(
            {
                "run": "v1-abc",
                "source": f"file://{self.folder}/models/table",
                "sink": "pvc://results/scores",
                "keep": ("id",),
                "shards": 1,
                "rows_per_file": 5,
                **changes,
            }
        )
        (self.folder / "claims" / "results").mkdir(parents=True, exist_ok=True)
        credentials = SecretCredentials(environment=self.environment)
        settings = AgentSettings(
            allow_loopback=True, file_root=self.folder / "models", batch_pvc_root=self.folder / "claims"
        )
        with asyncio.Runner() as runner:
            sink = open_sink(order.sink, settings, credentials)
            source = open_source(order.source, settings, credentials)
            results = ResultsFolder(sink, order.run, runner.run)
            features = None
            if order.features is not None:
                features = FeatureSources(
                    order.features, lambda uri: open_source(uri, settings, credentials), runner.run
                )
            model = cast("TritonModel", self.model) if self.has_model else None
            return ShardScorer(
                order, index, source, results, model, BatchMetrics(), runner.run, features
            ).score_shard()

    @property
    def results(self) -> Path:
        return self.folder / "claims" / "results" / "scores" / "v1-abc"

    def rows(self) -> list[dict[str, Any]]:
        paths = sorted(self.results.glob("part-*.parquet"))
        return [row for path in paths for row in pq.read_table(path).to_pylist()]


def pairs(rows: int, start: int = 0) -> dict[str, Any]:
    """Columns id and x of so many rows; the model answers id + 1."""
    ids = list(range(start, start + rows))
    return {"id": ids, "x": pa.array([[float(one), 1.0] for one in ids], pa.list_(pa.float64()))}

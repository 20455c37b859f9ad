"""Makes the model's inputs offline, from the same FeatureCompute and by the same engine that serve it online."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # publishes no types
import yaml
from numpy.typing import NDArray

from movielens_din.data import Ratings
from movielens_din.din import HISTORY, Architecture, NumberFeature
from movielens_din.events import moments_before
from tidegate.api.feature_compute import FeatureCompute
from tidegate.planning.features.feature_plan import compile_plan
from tidegate_dataplane.contract import AS_OF, Bucketize, Cross, FeaturePlan, Hash, Lookup
from tidegate_dataplane.features.engine import FeatureEngine
from tidegate_dataplane.features.offline import MAX_BATCH_ROWS, make_engine

Inputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class OfflineFeatures:
    """A compiled FeatureCompute over files: a folder of tables, and the events of its stream."""

    plan: FeaturePlan
    engine: FeatureEngine
    tables: Path

    @classmethod
    def compile(cls, document: Path, tables: Path, events: Path) -> OfflineFeatures:
        """Compiles the manifest `document`; its tables are looked for by file name in the folder `tables`.

        Raises InvalidSpecError as the controller would say it in the object's status, FeatureError when files and
        plan do not fit.
        """
        plan = compile_plan(FeatureCompute.parse(yaml.safe_load(document.read_text())))
        paths = {table.name: tables / Path(table.uri).name for table in plan.tables}
        engine = make_engine(plan, paths, {stream.name: events for stream in plan.streams})
        return cls(plan, engine, tables)

    def compute(self, rows: Ratings) -> Inputs:
        """Every feature as it was just before each rating: int64 or float32 [rows, k]."""
        inputs = {"user_id": rows.user_ids, "item_id": rows.item_ids, AS_OF: moments_before(rows)}
        parts = [
            self.engine.compute_features(
                {name: values[start : start + MAX_BATCH_ROWS] for name, values in inputs.items()}
            )
            for start in range(0, len(rows), MAX_BATCH_ROWS)
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def make_architecture(self, inputs: Inputs) -> Architecture:
        """The network for these features: embeddings, the history, and numbers as they are in `inputs` of training."""
        outputs = {spec.name: spec for spec in self.plan.outputs}
        return Architecture(
            vocabulary=tuple(
                (name, self.embedding_rows(name))
                for name, spec in outputs.items()
                if spec.dtype == "INT64" and name != HISTORY
            ),
            numbers=tuple(
                NumberFeature.measure(name, inputs[name])
                for name, spec in outputs.items()
                if spec.dtype == "FP32"
            ),
            history_length=outputs[HISTORY].shape[1],
        )

    def embedding_rows(self, feature: str) -> int:
        """How many rows an embedding of this feature needs, from the plan and the tables alone."""
        found = next(one for one in self.plan.features if one.name == feature)
        if isinstance(found, Bucketize):
            return len(found.boundaries) + 1
        if isinstance(found, Lookup):
            uri = next(table.uri for table in self.plan.tables if table.name == found.field.table)
            table = pq.read_table(self.tables / Path(uri).name, columns=[found.field.column])
            return int(np.max(table.column(0).to_numpy())) + 1
        if isinstance(found, Hash | Cross):
            return found.buckets
        message = f"feature {feature} is not an index"
        raise TypeError(message)

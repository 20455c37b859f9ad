"""Makes the model's inputs offline, from the same FeatureCompute and by the same engine that serve it online."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # publishes no types
import yaml
from numpy.typing import NDArray

from movielens_din.data import Ids
from tidegate.api.feature_compute import FeatureCompute
from tidegate.planning.features.feature_plan import compile_plan
from tidegate_dataplane.contract import Bucketize, Cross, FeaturePlan, Hash, Lookup
from tidegate_dataplane.features.engine import FeatureEngine

Inputs = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class OfflineFeatures:
    """A compiled FeatureCompute over tables in a local folder."""

    plan: FeaturePlan
    tables: Path

    @classmethod
    def compile(cls, document: Path, tables: Path) -> OfflineFeatures:
        """Compiles the manifest `document`; its tables are looked for by file name in the folder `tables`.

        Raises InvalidSpecError as the controller would say it in the object's status.
        """
        return cls(compile_plan(FeatureCompute.parse(yaml.safe_load(document.read_text()))), tables)

    def compute(self, user_ids: Ids, item_ids: Ids) -> Inputs:
        """Every feature of these rows: int64 [rows, k]. `user_ids` and `item_ids` are int64 [rows].

        Raises FeatureError when tables and plan do not fit.
        """
        paths = {table.name: self._path(table.name) for table in self.plan.tables}
        engine = FeatureEngine.from_files(self.plan, paths)
        computed = engine.compute_features({"user_id": user_ids, "item_id": item_ids})
        return {
            name: values.astype(np.int64, casting="safe", copy=False) for name, values in computed.items()
        }

    def embedding_rows(self, feature: str) -> int:
        """How many rows an embedding of this feature needs, from the plan and the tables alone."""
        found = next(one for one in self.plan.features if one.name == feature)
        if isinstance(found, Bucketize):
            return len(found.boundaries) + 1
        if isinstance(found, Lookup):
            table = pq.read_table(self._path(found.field.table), columns=[found.field.column])
            return int(np.max(table.column(0).to_numpy())) + 1
        if isinstance(found, Hash | Cross):
            return found.buckets
        message = f"feature {feature} is not an index"
        raise TypeError(message)

    def _path(self, table: str | None) -> Path:
        uri = next(one.uri for one in self.plan.tables if one.name == table)
        return self.tables / Path(uri).name

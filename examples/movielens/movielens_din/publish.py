"""Writes what a version consists of, so that a reader sees each file whole or not at all."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # publishes no types
from numpy.typing import NDArray

from movielens_din.data import Ratings
from movielens_din.events import moments_before


@dataclass(frozen=True, slots=True)
class VersionReport:
    """What is known about a version once it is trained."""

    version: str
    sha256: str
    auc: float
    max_abs_difference: float
    seconds: float


def write_version(output: Path, version: str, model: bytes) -> Path:
    """Writes <output>/<version>/model.onnx and nothing beside it; returns its path."""
    folder = output / version
    partial = output / f".{version}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / "model.onnx").write_bytes(model)
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)
    return folder / "model.onnx"


def write_report(output: Path, report: VersionReport) -> Path:
    """Writes <output>/training/<version>.json, outside the version's folder so that its checksum is the model's."""
    path = output / "training" / f"{report.version}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "version": report.version,
        "sha256": report.sha256,
        "auc": report.auc,
        "maxAbsDifference": report.max_abs_difference,
        "seconds": report.seconds,
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.replace(path)
    return path


def write_held_out(output: Path, rows: Ratings, scores: dict[str, NDArray[np.float32]]) -> Path:
    """Writes <output>/held-out.parquet: user_id, item_id, as_of, label and a column score_v<version> for each version.

    `as_of` is the time in milliseconds since 1970 whose features the scores are of. Columns of versions that were scored earlier, on the same rows, are kept. `scores`: float32 [rows, 1].
    """
    path = output / "held-out.parquet"
    columns: dict[str, NDArray[Any]] = {
        "user_id": rows.user_ids,
        "item_id": rows.item_ids,
        "as_of": moments_before(rows),
        "label": rows.labels,
    }
    if path.exists():
        table = pq.read_table(path)
        earlier: dict[str, NDArray[Any]] = {
            name: table.column(name).to_numpy() for name in table.column_names
        }
        if all(np.array_equal(earlier[name], values) for name, values in columns.items()):
            columns |= {name: values for name, values in earlier.items() if name.startswith("score_v")}
    columns |= {f"score_v{version}": values[:, 0] for version, values in scores.items()}
    partial = path.with_suffix(".partial")
    pq.write_table(pa.table(columns), partial)
    partial.replace(path)
    return path

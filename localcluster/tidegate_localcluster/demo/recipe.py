"""Train the example model in its own process, and publish its versions where the cluster reads them."""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.progress import Progress, run_with_progress

EXAMPLE: Final = "examples/movielens"
FOLDER: Final = "movielens"
"""Folder of the model in the models folder, where the example's manifests expect it, and of its training in `home`."""
TRAINING_PACKAGES: Final = ("jax", "jaxlib", "numpy", "onnx", "optax")
"""Packages whose version can change what is trained."""


@dataclass(frozen=True, slots=True)
class TrainedVersion:
    """What the recipe reported about one version."""

    version: str
    sha256: str
    auc: float
    max_abs_difference: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PublishedRatings:
    """What publish_events.py reported about the stream of ratings."""

    stream: str
    subject: str
    count: int
    shift_ms: int
    """Milliseconds that were added to the time of each rating."""
    is_new: bool
    """Whether the stream was made by this call; it had the ratings before if not."""


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """The MovieLens example of a source tree; `home` keeps what it trains until its code changes."""

    source_root: Path
    home: Path

    @property
    def example_folder(self) -> Path:
        """Return the example's folder: manifests and code."""
        return self.source_root / EXAMPLE

    @property
    def output_folder(self) -> Path:
        """Return the folder of the models, tables and held-out rows of exactly this code."""
        return self.home / FOLDER / self._compute_digest()

    @property
    def held_out_path(self) -> Path:
        """Return the file of the test rows with each version's offline scores."""
        return self.output_folder / "held-out.parquet"

    def train_versions(self, versions: Iterable[str], progress: Progress) -> Mapping[str, TrainedVersion]:
        """Train the versions that do not exist yet. Raises LocalClusterError with the end of the recipe's output."""
        requested = tuple(versions)
        missing = [version for version in requested if not self._report_path(version).exists()]
        if missing:
            arguments = [argument for version in missing for argument in ("--version", version)]
            self._run_script(
                "train.py",
                ["--output", self.output_folder, *arguments],
                task=f"training version {' and '.join(missing)} of DIN on MovieLens-100k",
                progress=progress,
            )
        else:
            progress(f"trained before, by the same code: {self.output_folder}")
        return {version: self._read_report(version) for version in requested}

    def publish_events(self, address: str, progress: Progress) -> PublishedRatings:
        """Publish the ratings to the NATS server at `address`, unless its stream has them; return the recipe's report.

        Raises LocalClusterError with the end of the recipe's output.
        """
        lines = self._run_script(
            "publish_events.py",
            ["--events", self.output_folder / "events.parquet", "--url", f"nats://{address}", "--json"],
            task="publishing the ratings as events",
            progress=progress,
        )
        report = json.loads(lines[-1])
        return PublishedRatings(
            stream=str(report["stream"]),
            subject=str(report["subject"]),
            count=int(report["count"]),
            shift_ms=int(report["shiftMs"]),
            is_new=bool(report["isNew"]),
        )

    def publish_tables(self, models: Path) -> None:
        """Copy the feature tables to where FeatureCompute reads them."""
        _replace_folder(self.output_folder / "tables", models / FOLDER / "tables")

    def publish_version(self, version: str, models: Path) -> Path:
        """Copy one version to where Inference reads it, atomically, and return the model's path."""
        target = models / FOLDER / version
        _replace_folder(self.output_folder / version, target)
        return target / "model.onnx"

    def is_published(self, version: str, models: Path) -> bool:
        """Return whether exactly these tables and this version are published."""
        pairs = [(f"{version}/model.onnx",) * 2, ("tables/users.parquet",) * 2, ("tables/items.parquet",) * 2]
        return all(
            _same_content(self.output_folder / source, models / FOLDER / target) for source, target in pairs
        )

    def _run_script(
        self, name: str, arguments: Sequence[str | Path], *, task: str, progress: Progress
    ) -> Sequence[str]:
        return run_with_progress(
            [sys.executable, self.example_folder / name, *arguments],
            task=task,
            progress=progress,
            environment={**os.environ, "PYTHONUNBUFFERED": "1"},
            describe=lambda lines: lines[-1].partition("] ")[2],
        )

    def _report_path(self, version: str) -> Path:
        return self.output_folder / "training" / f"{version}.json"

    def _read_report(self, version: str) -> TrainedVersion:
        report = json.loads(self._report_path(version).read_text())
        try:
            return TrainedVersion(
                version=version,
                sha256=str(report["sha256"]),
                auc=float(report["auc"]),
                max_abs_difference=float(report["maxAbsDifference"]),
                seconds=float(report["seconds"]),
            )
        except KeyError as error:
            raise DemoError(
                f"{self._report_path(version)} lacks {error}; remove {self.output_folder} to train again"
            ) from error

    def _compute_digest(self) -> str:
        """Return a digest of all that decides what is trained: code, manifests, feature engine, packages."""
        digest = hashlib.sha256()
        engine = self.source_root / "dataplane" / "tidegate_dataplane"
        for folder in (self.example_folder, engine / "features", engine / "event_store"):
            for path in sorted((*folder.rglob("*.py"), *folder.glob("feature-compute.yaml"))):
                digest.update(f"{path.relative_to(self.source_root)}\0".encode())
                digest.update(path.read_bytes())
        for package in TRAINING_PACKAGES:
            digest.update(f"{package}=={metadata.version(package)}\0".encode())
        return digest.hexdigest()[:16]


def _replace_folder(source: Path, target: Path) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.replace(target)


def _same_content(source: Path, target: Path) -> bool:
    return target.exists() and source.read_bytes() == target.read_bytes()

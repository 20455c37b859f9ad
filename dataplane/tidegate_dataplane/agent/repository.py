"""The model repository on disk: version folders that appear whole, and a record of what each one is."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tidegate_dataplane.agent.artefacts.facts import Facts
from tidegate_dataplane.contract import DesiredState, ModelFormat

INCOMING = ".incoming"
PARTS = ".parts"
PACKAGE = Path(__file__).parent.parent
HOSTS = {
    ModelFormat.ONNX: PACKAGE / "models" / "host" / "model.py",
    ModelFormat.FEATURES: PACKAGE / "models" / "features" / "model.py",
    ModelFormat.PIPELINE: PACKAGE / "models" / "pipeline" / "model.py",
}
# What our models need at run time; it travels with the version, so the server's image cannot disagree.
PARTS_OF = {
    ModelFormat.ONNX: ("__init__.py", "sampling"),
    ModelFormat.FEATURES: ("__init__.py", "contract", "features", "sampling"),
    ModelFormat.PIPELINE: ("__init__.py", "contract", "pipeline", "sampling"),
}


@dataclass(frozen=True, slots=True)
class Installed:
    """A version folder that was put in place, and the one it displaced until the new one is proven."""

    folder: Path
    displaced: Path | None


class Repository:
    """`<root>/<model>/<version>/…` for Triton, `<cache>/records/<model>/<version>.json` for the agent."""

    def __init__(self, root: Path, cache: Path) -> None:
        self._root = root
        self._records = cache / "records"

    @property
    def parts(self) -> Path:
        """The folder of unfinished downloads, on the same file system; an earlier agent's are gone on with."""
        return self._root / PARTS

    def prepare(self) -> None:
        """Make the folders and drop what an earlier agent left half done, downloads aside."""
        shutil.rmtree(self._root / INCOMING, ignore_errors=True)
        (self._root / INCOMING).mkdir(parents=True)
        self._records.mkdir(parents=True, exist_ok=True)

    def staging(self) -> Path:
        """Return a new empty folder on the repository's own file system, so that a rename puts it in place."""
        folder = Path(tempfile.mkdtemp(dir=self._root / INCOMING))
        folder.chmod(0o755)
        return folder

    def stored(self, model: str) -> Mapping[int, Facts]:
        """Return the versions of `model` that are on disk, whole."""
        versions: dict[int, Facts] = {}
        for record in sorted((self._records / model).glob("*.json")):
            try:
                facts = Facts.model_validate_json(record.read_bytes())
            except ValidationError:
                continue
            folder = self._root / model / str(facts.version)
            if all(_size(folder / file.path) == file.size for file in facts.files):
                versions[facts.version] = facts
        return versions

    def install(self, staging: Path, order: DesiredState, facts: Facts) -> Installed:
        """Add what the server needs beside the artefact, then put the folder in place under its version."""
        _complete(staging, order)
        folder = self._root / order.model / str(order.version)
        folder.parent.mkdir(parents=True, exist_ok=True)
        record = self._records / order.model / f"{order.version}.json"
        displaced = None
        if folder.exists():
            displaced = self.staging()
            record.unlink(missing_ok=True)
            folder.rename(displaced / "version")
        staging.rename(folder)
        _write(record, facts.model_dump_json())
        return Installed(folder, displaced)

    def restore(self, installed: Installed, facts: Facts) -> None:
        """Undo an installation that displaced a version: the displaced one, described by `facts`, comes back."""
        if installed.displaced is None:
            return
        shutil.rmtree(installed.folder)
        (installed.displaced / "version").rename(installed.folder)
        installed.displaced.rmdir()
        _write(
            self._records / installed.folder.parent.name / f"{facts.version}.json", facts.model_dump_json()
        )

    def discard(self, folder: Path | None) -> None:
        """Remove a staging folder or a displaced version."""
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self, model: str, version: int) -> None:
        """Remove one version and its record."""
        (self._records / model / f"{version}.json").unlink(missing_ok=True)
        shutil.rmtree(self._root / model / str(version), ignore_errors=True)

    def remove_model(self, model: str) -> None:
        """Remove a model that is no longer served."""
        shutil.rmtree(self._records / model, ignore_errors=True)
        shutil.rmtree(self._root / model, ignore_errors=True)

    def models(self) -> tuple[str, ...]:
        """Return the names of the models on disk."""
        return tuple(sorted(path.name for path in self._records.iterdir() if path.is_dir()))

    def write_config(self, model: str, text: str) -> None:
        """Write config.pbtxt for whoever looks; the server was given the same as an override."""
        _write(self._root / model / "config.pbtxt", text)


def _complete(folder: Path, order: DesiredState) -> None:
    # The server takes a version folder whose time changed for a changed version and would load it twice:
    # a file of this name keeps its Python backend from writing byte code there.
    (folder / "__pycache__").touch()
    host = HOSTS.get(order.format)
    if host is not None:
        shutil.copyfile(host, folder / "model.py")
        _copy_package(folder / PACKAGE.name, PARTS_OF[order.format])
    if order.format is ModelFormat.FEATURES and order.plan is not None:
        (folder / "plan.json").write_text(order.plan.to_json())
    if order.format is ModelFormat.PIPELINE and order.pipeline is not None:
        (folder / "pipeline.json").write_text(order.pipeline.to_json())
    for directory, _, names in os.walk(folder):
        for name in names:
            (Path(directory) / name).chmod(0o644)


def _copy_package(target: Path, parts: Sequence[str]) -> None:
    target.mkdir(exist_ok=True)
    for part in parts:
        source = PACKAGE / part
        if source.is_dir():
            shutil.copytree(
                source, target / part, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
            )
        else:
            shutil.copyfile(source, target / part)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)

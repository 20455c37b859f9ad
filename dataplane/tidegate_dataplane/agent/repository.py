"""Model repository on disk: version folders that appear atomically, and a record of each."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts, StoredFile
from tidegate_dataplane.agent.artefacts.table_fetch import StoredTables
from tidegate_dataplane.agent.files import link_or_copy, write_whole
from tidegate_dataplane.agent.formats import MODEL_FILES, SERVED_GRAPH, UNKNOWN_GRAPH
from tidegate_dataplane.contract import DesiredState, ModelFormat
from tidegate_dataplane.features.table_file import TABLE_SUFFIX, is_converted
from tidegate_dataplane.runner_interface import COMPILE_FOLDER_FILE

INCOMING = ".incoming"
PARTS = ".parts"
COMPILE_DIR = "compile"
"""Folder of the cache through which agent, compiler and runners exchange what was compiled."""
COMPILED_DIR = "compiled"
"""Of the files that pods share through an object store; processes of the model have no access to it."""
PACKAGE = Path(__file__).parent.parent
HOST_MODELS = {
    ModelFormat.ONNX: PACKAGE / "models" / "host" / "model.py",
    ModelFormat.FEATURES: PACKAGE / "models" / "features" / "model.py",
    ModelFormat.PIPELINE: PACKAGE / "models" / "pipeline" / "model.py",
}
# What our models need at run time; it travels with the version, so the server's image cannot disagree.
RUNTIME_PARTS = {
    ModelFormat.ONNX: ("__init__.py", "runner_interface.py", "batching", "engines", "sampling"),
    ModelFormat.FEATURES: (
        "__init__.py",
        "addresses.py",
        "contract",
        "event_store",
        "features",
        "runner_interface.py",
        "sampling",
    ),
    ModelFormat.PIPELINE: ("__init__.py", "contract", "runner_interface.py", "pipeline", "sampling"),
}


@dataclass(frozen=True, slots=True)
class InstalledVersion:
    """An installed version folder, and the one it displaced until the new one is proven."""

    folder: Path
    displaced: Path | None


class ModelRepository:
    """`<root>/<model>/<version>/…` for Triton, `<cache>/records/<model>/<version>.json` for the agent."""

    def __init__(self, root: Path, cache: Path, *, scope: str = "") -> None:
        """`scope` separates what is unfinished from that of other repositories with the same root."""
        self._root = root
        self._incoming = root / INCOMING / scope
        self._parts = root / PARTS / scope
        self._cache = cache
        self._records = cache / "records"
        self._compiled = cache / COMPILE_DIR

    @property
    def models_dir(self) -> Path:
        """Return the folder of the models."""
        return self._root

    @property
    def partial_dir(self) -> Path:
        """Return the folder of unfinished downloads, which a restarted agent resumes; on the repository's file system."""
        return self._parts

    def prepare_folders(self) -> None:
        """Create the folders and remove what an earlier agent left unfinished, except downloads."""
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir(parents=True)
        self._records.mkdir(parents=True, exist_ok=True)

    def make_staging(self) -> Path:
        """Return a new empty folder on the repository's own file system, so that a rename puts it in place."""
        folder = Path(tempfile.mkdtemp(dir=self._incoming))
        folder.chmod(0o755)
        return folder

    def read_stored(self, model: str) -> Mapping[int, ArtefactFacts]:
        """Return the complete versions of `model` on disk."""
        versions: dict[int, ArtefactFacts] = {}
        for record in sorted((self._records / model).glob("*.json")):
            try:
                facts = ArtefactFacts.model_validate_json(record.read_bytes())
            except ValidationError:
                continue
            folder = self._root / model / str(facts.version)
            if all(_is_intact(folder, file) for file in facts.files):
                versions[facts.version] = facts
        return versions

    def install_version(self, staging: Path, order: DesiredState, facts: ArtefactFacts) -> InstalledVersion:
        """Add our runtime files to the artefact, then move the folder to its place."""
        if order.format is ModelFormat.ONNX:
            (staging / COMPILE_FOLDER_FILE).write_text(str(self._compiled / facts.digest))
        _add_runtime_files(staging, order)
        folder = self._root / order.model / str(order.version)
        folder.parent.mkdir(parents=True, exist_ok=True)
        record = self._records / order.model / f"{order.version}.json"
        displaced = None
        if folder.exists():
            displaced = self.make_staging()
            record.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                record.with_suffix(".graph").rename(displaced / "graph")
            folder.rename(displaced / "version")
        staging.rename(folder)
        write_whole(record, facts.model_dump_json())
        return InstalledVersion(folder, displaced)

    def find_tables(self, order: DesiredState, facts: ArtefactFacts, changed: str) -> StoredTables:
        """Return the tables of a stored version, one of which has changed at its source."""
        return StoredTables(self._root / order.model / str(order.version), facts, changed)

    def update_record(self, order: DesiredState, facts: ArtefactFacts) -> None:
        """Replace the facts of a stored version whose files have not changed."""
        write_whole(self._records / order.model / f"{order.version}.json", facts.model_dump_json())

    def model_file(self, model: str, version: int) -> Path:
        """Return where the published graph of a stored ONNX version is."""
        return self._root / model / str(version) / MODEL_FILES[ModelFormat.ONNX]

    def read_graphs(self, model: str) -> Mapping[int, str]:
        """Return the sha256 of the compiled graph of each version that has one in its place, UNKNOWN_GRAPH if that was cut short."""
        return {
            int(record.stem): record.read_text() for record in (self._records / model).glob("[0-9]*.graph")
        }

    def install_graph(self, model: str, version: int, graph: Path | None, sha256: str = "") -> None:
        """Let the server load `graph` for a version when it loads it next; None is the published graph.

        A graph that is in its place stays untouched, since the server reloads a version whose folder has changed.
        """
        folder = self._root / model / str(version)
        record = self._records / model / f"{version}.graph"
        if self.read_graphs(model).get(version, "") == sha256:
            return
        write_whole(record, UNKNOWN_GRAPH)
        part = folder / f".{SERVED_GRAPH}.part"
        part.unlink(missing_ok=True)
        link_or_copy(graph if graph is not None else folder / MODEL_FILES[ModelFormat.ONNX], part)
        part.chmod(0o644)
        part.replace(folder / SERVED_GRAPH)
        if graph is not None:
            write_whole(record, sha256)
        else:
            record.unlink()

    def restore_displaced(self, installed: InstalledVersion, facts: ArtefactFacts) -> None:
        """Undo an installation that displaced a version; `facts` describe the displaced one."""
        if installed.displaced is None:
            return
        shutil.rmtree(installed.folder)
        (installed.displaced / "version").rename(installed.folder)
        records = self._records / installed.folder.parent.name
        with contextlib.suppress(FileNotFoundError):
            (installed.displaced / "graph").rename(records / f"{facts.version}.graph")
        installed.displaced.rmdir()
        write_whole(records / f"{facts.version}.json", facts.model_dump_json())

    def discard_folder(self, folder: Path | None) -> None:
        """Remove a staging folder or a displaced version."""
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def remove_version(self, model: str, version: int) -> None:
        """Remove one version and its record."""
        for suffix in ("json", "graph"):
            (self._records / model / f"{version}.{suffix}").unlink(missing_ok=True)
        shutil.rmtree(self._root / model / str(version), ignore_errors=True)

    def list_models(self) -> tuple[str, ...]:
        """Return the names of the models on disk."""
        if not self._records.is_dir():
            return ()
        return tuple(sorted(path.name for path in self._records.iterdir() if path.is_dir()))

    def remove_all(self) -> None:
        """Remove all models, what is unfinished, and the cache."""
        for folder in (*(self._root / model for model in self.list_models()), self._incoming, self._parts):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self._cache, ignore_errors=True)

    def write_config(self, model: str, text: str) -> None:
        """Write config.pbtxt for people to read; the server gets the same content as an override."""
        write_whole(self._root / model / "config.pbtxt", text)


def _add_runtime_files(folder: Path, order: DesiredState) -> None:
    # The server takes a version folder whose time changed for a changed version and would load it twice:
    # a file of this name keeps its Python backend from writing byte code there.
    (folder / "__pycache__").touch()
    host = HOST_MODELS.get(order.format)
    if host is not None:
        shutil.copyfile(host, folder / "model.py")
        _copy_package(folder / PACKAGE.name, RUNTIME_PARTS[order.format])
    if order.format is ModelFormat.ONNX:
        link_or_copy(folder / MODEL_FILES[ModelFormat.ONNX], folder / SERVED_GRAPH)
    if order.format is ModelFormat.FEATURES and order.plan is not None:
        (folder / "plan.json").write_text(order.plan.to_json(), encoding="utf-8")
    if order.format is ModelFormat.PIPELINE and order.pipeline is not None:
        (folder / "pipeline.json").write_text(order.pipeline.to_json(), encoding="utf-8")
    for directory, _, names in os.walk(folder):
        for name in names:
            (Path(directory) / name).chmod(0o644)


def _copy_package(target: Path, parts: Sequence[str]) -> None:
    """Copy parts of our package, and the byte code that there is of them: else the server would compile them at every load.

    A server whose Python has another version ignores the byte code.
    """
    target.mkdir(exist_ok=True)
    for part in parts:
        source = PACKAGE / part
        if source.is_dir():
            shutil.copytree(source, target / part, dirs_exist_ok=True)
        else:
            shutil.copy2(source, target / part)
            for compiled in (PACKAGE / "__pycache__").glob(f"{source.stem}.*.pyc"):
                (target / "__pycache__").mkdir(exist_ok=True)
                shutil.copy2(compiled, target / "__pycache__")


def _is_intact(folder: Path, file: StoredFile) -> bool:
    """Return whether a file has its size, and a converted table the content that it was made from."""
    path = folder / file.path
    try:
        has_size = path.stat().st_size == file.size
    except OSError:
        return False
    return has_size and (path.suffix != TABLE_SUFFIX or is_converted(path, file.sha256))

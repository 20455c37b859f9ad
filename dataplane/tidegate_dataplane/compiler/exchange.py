"""Files through which the agent requests the compilation of a graph and the compiler returns it.

Every file appears by a rename, so each side can be killed at any moment.
"""

import shutil
from collections.abc import Callable, Collection, Sequence
from math import isfinite
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tidegate_dataplane.agent.files import write_whole
from tidegate_dataplane.contract import BucketResult, CompileOutcome, EngineOrder, EngineReport
from tidegate_dataplane.engines.engine_folder import EngineFolder, describe_shape, find_engine_dir
from tidegate_dataplane.sampling.kept_requests import REQUESTS_FOLDER, list_requests

GRAPH_FILE = "graph.onnx"
COMPARISON_FILE = "comparison.json"
SCRATCH_PREFIX = ".scratch-"
MAX_MEASURED_ROWS = 128
"""The largest number of rows that passes are measured at."""
MAX_TEXT_CHARS = 512
"""Of a shape or a reason in a report."""
MAX_REPORTED = 64
"""Buckets in a report."""


class CompileJob(BaseModel):
    """A version whose graph is to be compiled; `digest` identifies its content, and `source` is its model.onnx.

    Requests of up to `max_rows` rows decide whether a pass pays, and `shared_inputs` have equal rows in most of them. With `engine`, shapes that come often are compiled for it afterwards.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    version: int
    digest: str
    source: Path
    max_rows: int = MAX_MEASURED_ROWS
    shared_inputs: tuple[str, ...] = ()
    engine: EngineOrder | None = None


class CompileResult(CompileOutcome):
    """What the compiler made of a graph; `graph_sha256` is that of the faster graph, empty if the published one is served."""

    graph_sha256: str = ""


class RequestComparison(BaseModel):
    """How far the answers of two graphs to requests of clients differ; `error` says it to people, empty within the tolerance.

    `answered` counts the requests that both answered.
    """

    model_config = ConfigDict(frozen=True)

    answered: int
    error: str = ""


def read_comparison(folder: Path) -> RequestComparison | None:
    """Return what a comparison wrote into a folder; None if it ended without a result."""
    try:
        return RequestComparison.model_validate_json((folder / COMPARISON_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


RunModule = Callable[[CompileJob, str, Sequence[str]], int | None]
"""Runs a module as a process with the compiler's limits; returns its exit status, None if it took too long."""


def make_engine_report(engines: EngineFolder) -> EngineReport:
    """Return what became of the buckets of a version, and what its runners say."""
    notes = engines.read_notes()
    unpadded = [
        f"padding the {kind} changes the answers: such shapes are compiled as they are"
        for kind in notes.unpadded
    ]
    buckets = [
        BucketResult(
            shape=describe_shape(bucket.shape)[:MAX_TEXT_CHARS],
            engine=bucket.engine if bucket.file else "",
            reason=bucket.reason[:MAX_TEXT_CHARS],
            speedup=bucket.speedup,
            max_error=bucket.max_error if isfinite(bucket.max_error) else None,
            cached=bucket.cached,
        )
        for bucket in engines.read_buckets()[:MAX_REPORTED]
    ]
    return EngineReport(buckets=tuple(buckets), message="; ".join(filter(None, [notes.problem, *unpadded])))


class CompileFolder:
    """`<root>/job.json`, and `<root>/<digest>/` with `result.json`, the graph, requests of clients, and the number of attempts."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write_job(self, job: CompileJob | None, kept_digests: Collection[str] = ()) -> None:
        """Order the job, or none; other results are removed, except those of versions that the pod keeps."""
        if job == self.read_job():
            return
        path = self._root / "job.json"
        if job is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, job.model_dump_json())
        for folder in self._root.iterdir() if self._root.is_dir() else ():
            is_result = folder.is_dir() and not folder.name.startswith(".")
            if is_result and folder.name not in kept_digests and (job is None or folder.name != job.digest):
                shutil.rmtree(folder, ignore_errors=True)

    def read_job(self) -> CompileJob | None:
        """Return the ordered job; None without one."""
        try:
            return CompileJob.model_validate_json((self._root / "job.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def graph_path(self, digest: str) -> Path:
        """Return where the compiled graph of a version is, if there is one."""
        return self._root / digest / GRAPH_FILE

    def find_engines(self, digest: str, order: EngineOrder) -> EngineFolder:
        """Return where the engines of a version are exchanged with its runners."""
        names = order.engine.value, order.precision.value
        return EngineFolder(find_engine_dir(self._root / digest, *names, order.rows, order.lengths))

    def ask_for_requests(self, digest: str) -> None:
        """Let the runners of a version keep requests for a comparison."""
        (self._root / digest / REQUESTS_FOLDER).mkdir(parents=True, exist_ok=True)

    def list_requests(self, digest: str) -> list[Path]:
        """Return the files of requests that runners of the version have kept."""
        return list_requests(self._root / digest)

    def drop_requests(self, digest: str) -> None:
        """Let the runners of a version keep no more requests, and remove those that they have kept."""
        shutil.rmtree(self._root / digest / REQUESTS_FOLDER, ignore_errors=True)

    def drop_engines(self, digest: str) -> None:
        """Remove all engines of a version."""
        for folder in (self._root / digest).glob("engines-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def count_compared(self, digest: str) -> int:
        """Return on how many requests the graphs of a version were compared after its compilation."""
        return self._read_number(digest, "compared")

    def add_compared(self, digest: str, count: int) -> None:
        """Count requests on which the graphs were compared; beside the result, which the agent may write at the same time."""
        self._write_number(digest, "compared", self.count_compared(digest) + count)

    def count_attempts(self, digest: str) -> int:
        """Return how often a compilation of this content has begun."""
        return self._read_number(digest, "attempts")

    def begin_attempt(self, digest: str) -> None:
        """Count an attempt before it begins, so that one that takes the compiler with it counts too."""
        self._write_number(digest, "attempts", self.count_attempts(digest) + 1)

    def cancel_attempt(self, digest: str) -> None:
        """Do not count the attempt that has just begun: it was withdrawn, and not ended by what it does."""
        if count := self.count_attempts(digest):
            self._write_number(digest, "attempts", count - 1)

    def _read_number(self, digest: str, name: str) -> int:
        try:
            return int((self._root / digest / name).read_text())
        except (OSError, ValueError):
            return 0

    def _write_number(self, digest: str, name: str, count: int) -> None:
        write_whole(self._root / digest / name, str(count))

    def write_result(self, digest: str, result: CompileResult, graph: Path | None = None) -> None:
        """Move the graph to its place, then write the result that names it."""
        target = self.graph_path(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        if graph is not None:
            graph.replace(target)
        write_whole(target.with_name("result.json"), result.model_dump_json())

    def read_result(self, digest: str) -> CompileResult | None:
        """Return the result for this content; None as long as there is none."""
        try:
            return CompileResult.model_validate_json((self._root / digest / "result.json").read_bytes())
        except (OSError, ValidationError):
            return None

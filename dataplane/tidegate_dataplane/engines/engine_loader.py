"""Load engines while the version serves: a thread of the runner that reads what the compiler has made, and never waits for it."""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidegate_dataplane.batching.arrays import Answer, Inputs
from tidegate_dataplane.engines.bucket_shapes import BucketShape
from tidegate_dataplane.engines.engine_folder import (
    CompiledBucket,
    EngineFolder,
    RunnerNotes,
    find_engine_dir,
)
from tidegate_dataplane.engines.engine_router import Engine, EngineRouter, LoadedBucket, read_choice
from tidegate_dataplane.engines.request_guard import RequestGuard
from tidegate_dataplane.runner_interface import (
    BUCKETED,
    COMPILE_FOLDER_FILE,
    ENGINES_LOADED,
    HIT,
    MISS,
    ORIGINAL,
    PADDED_ROWS,
)

POLL_S = 1.0
NO_OPENVINO = (
    "the Triton image has no Python package openvino: use Tidegate's image, or remove spec.compile.engine"
)
MEMORY_FACTOR = 2
"""Memory that an engine takes at most, as a multiple of its file."""

NO_COUNTS: Final = {
    **{(BUCKETED, way): 0 for way in (HIT, MISS, ORIGINAL)},
    (PADDED_ROWS, ""): 0,
    (ENGINES_LOADED, ""): 0,
}
"""What a runner without engines counts."""


@dataclass(frozen=True, slots=True)
class RunnerFacts:
    """What the loader has to know of the runner; `free_bytes` returns the memory that is free, None without a limit.

    All `instances` processes of the version load the same engines. `version_bytes` is the memory of all of them without any, which
    the next version needs while both are loaded.
    """

    name: str
    outputs: Sequence[str]
    threads: int
    free_bytes: Callable[[], int | None]
    instances: int = 1
    version_bytes: int = 0


class EngineLoader:
    """Routes requests, and loads the engines that the compiler writes for their shapes."""

    def __init__(
        self,
        folder: EngineFolder,
        router: EngineRouter,
        load_engine: Callable[[bytes], Engine] | None,
        facts: RunnerFacts,
    ) -> None:
        """Without `load_engine`, no engine can be loaded here."""
        self.router = router
        self._folder, self._load_engine, self._facts = folder, load_engine, facts
        self._tried: dict[BucketShape, str] = {}
        self._written: RunnerNotes | None = None
        self._loaded = 0
        self._stop = threading.Event()

    def start_loading(self) -> None:
        """Load engines from now on, in the background."""
        threading.Thread(target=self._load_forever, name="engine-loader", daemon=True).start()

    def stop_loading(self) -> None:
        """Load no more engines."""
        self._stop.set()

    def read_counters(self) -> dict[tuple[str, str], int]:
        """Return the counts since the start, by name and way."""
        return {**self.router.read_counters(), (ENGINES_LOADED, ""): self._loaded}

    def exchange_files(self) -> None:
        """Load the engines that are new, and tell the compiler which buckets are missed."""
        if self._load_engine is not None:
            for bucket in self._folder.read_buckets():
                if bucket.file and self._tried.get(bucket.shape) != bucket.sha256:
                    self._tried[bucket.shape] = bucket.sha256
                    self._load_bucket(bucket, self._load_engine)
            notes = self.router.read_notes()
        else:
            notes = RunnerNotes(problem=NO_OPENVINO)
        # The folder of a version that is no longer compiled is gone.
        if notes == self._written and self._folder.touch_notes(self._facts.name):
            return
        if self._folder.root.parent.is_dir():
            self._folder.write_notes(self._facts.name, notes)
            self._written = notes

    def _load_forever(self) -> None:
        while not self._stop.wait(POLL_S):
            # A full disk, or a folder that the agent removes meanwhile.
            with suppress(OSError):
                self.exchange_files()

    def _find_room(self) -> int | None:
        """Return the bytes that this process may take for an engine; None without a limit."""
        free = self._facts.free_bytes()
        return None if free is None else max(free - self._facts.version_bytes, 0) // self._facts.instances

    def _load_bucket(self, bucket: CompiledBucket, load_engine: Callable[[bytes], Engine]) -> None:
        path = self._folder.root / bucket.file
        try:
            room, needed = self._find_room(), MEMORY_FACTOR * path.stat().st_size
            if room is not None and needed > room:
                self.router.report_refusal(
                    bucket.shape,
                    f"the engine may need {needed >> 20} MiB, and {room >> 20} MiB are free beside what the next version needs: "
                    "raise spec.resources.memory",
                )
                return
            blob = path.read_bytes()
            if hashlib.sha256(blob).hexdigest() != bucket.sha256:
                self.router.report_refusal(bucket.shape, "the file of the engine is damaged")
                return
            engine = load_engine(blob)
        except Exception as error:  # noqa: BLE001 - OpenVINO has no class of its own for a file of another version
            self.router.report_refusal(bucket.shape, f"the engine cannot be loaded: {error}")
            return
        self.router.add_bucket(LoadedBucket(bucket.shape, engine, RequestGuard(bucket.bounds)))
        self._loaded += 1


def start_engines(
    version_dir: Path,
    parameter: str,
    free_dims: Mapping[str, Sequence[bool]],
    execute: Callable[[Inputs], Answer],
    facts: RunnerFacts,
) -> EngineLoader | None:
    """Return the loader of a version, started; None if its order asks for no engine."""
    try:
        root = (version_dir / COMPILE_FOLDER_FILE).read_text()
    except OSError:
        return None
    if not parameter:
        return None
    content = json.loads(parameter)
    choice = read_choice(content)
    sizes = choice.sizes.rows, choice.sizes.lengths
    folder = EngineFolder(find_engine_dir(Path(root), content["engine"], choice.precision, *sizes))
    router = EngineRouter(execute, choice, free_dims)
    loader = EngineLoader(folder, router, _find_engine(facts, choice.precision), facts)
    loader.start_loading()
    return loader


def _find_engine(facts: RunnerFacts, precision: str) -> Callable[[bytes], Engine] | None:
    try:
        from tidegate_dataplane.engines.openvino_engine import OpenVinoEngine
    except ImportError:
        return None

    def load_engine(blob: bytes) -> Any:
        return OpenVinoEngine.load_blob(blob, facts.outputs, precision=precision, threads=facts.threads)

    return load_engine

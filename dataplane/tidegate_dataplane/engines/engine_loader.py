"""Load engines while the version serves: a thread of the runner that reads what the compiler has made, and never waits for it."""

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate_dataplane.batching.arrays import Answer, Inputs
from tidegate_dataplane.engines.bucket_shapes import BucketShape
from tidegate_dataplane.engines.engine_folder import (
    CompiledBucket,
    EngineFolder,
    RunnerNotes,
    find_engine_dir,
)
from tidegate_dataplane.engines.engine_router import Engine, EngineRouter, LoadedBucket, read_choice
from tidegate_dataplane.engines.split_engine import Lookups, SplitEngine, list_network_names
from tidegate_dataplane.runner_interface import (
    BUCKETED,
    ENGINES_LOADED,
    HIT,
    MISS,
    ORIGINAL,
    PADDED_ROWS,
    find_compile_folder,
)

POLL_S = 1.0
NO_OPENVINO = (
    "the Triton image has no Python package openvino: use Tidegate's image, or remove spec.compile.engine"
)
MEMORY_FACTOR = 2
"""Memory that an engine or its lookups take at most, as a multiple of the file."""

ReadFile = Callable[[str, str], bytes]
"""Returns the content of a file of the compiler's folder, by name and SHA-256."""
LoadEngine = Callable[[CompiledBucket, ReadFile], Engine]
"""Makes an engine of the files of a bucket."""

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
        load_engine: LoadEngine | None,
        facts: RunnerFacts,
    ) -> None:
        """Without `load_engine`, no engine can be loaded here."""
        self.router = router
        self._folder, self._load_engine, self._facts = folder, load_engine, facts
        self._tried: dict[BucketShape, str] = {}
        self._opened: set[str] = set()
        """Digests of the lookups that are in memory."""
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
            buckets = self._folder.read_buckets()
            self.router.leave_to_original(frozenset(bucket.shape for bucket in buckets if bucket.reason))
            for bucket in buckets:
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

    def _load_bucket(self, bucket: CompiledBucket, load_engine: LoadEngine) -> None:
        try:
            room, needed = self._find_room(), self._estimate_memory(bucket)
            if room is not None and needed > room:
                self.router.report_refusal(
                    bucket.shape,
                    f"the engine may need {needed >> 20} MiB, and {room >> 20} MiB are free beside what the next version needs: "
                    "raise spec.resources.memory",
                )
                return
            engine = load_engine(bucket, self._read_file)
        except Exception as error:  # noqa: BLE001 - OpenVINO has no class of its own for a file of another version
            self.router.report_refusal(bucket.shape, f"the engine cannot be loaded: {error}")
            return
        self._opened.add(bucket.lookups)
        self.router.add_bucket(LoadedBucket(bucket.shape, engine))
        self._loaded += 1

    def _estimate_memory(self, bucket: CompiledBucket) -> int:
        """Return the bytes that an engine takes at most, with its lookups if no other engine has opened them."""
        paths = [self._folder.root / bucket.file]
        if bucket.lookups and bucket.lookups not in self._opened:
            paths.append(self._folder.lookups_path(bucket.lookups))
        return MEMORY_FACTOR * sum(path.stat().st_size for path in paths)

    def _read_file(self, name: str, digest: str) -> bytes:
        content = (self._folder.root / name).read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            message = "its file is damaged"
            raise ValueError(message)
        return content


def start_engines(
    version_dir: Path,
    parameter: str,
    free_dims: Mapping[str, Sequence[bool]],
    execute: Callable[[Inputs], Answer],
    facts: RunnerFacts,
) -> EngineLoader | None:
    """Return the loader of a version, started; None if its order asks for no engine."""
    root = find_compile_folder(version_dir)
    if root is None or not parameter:
        return None
    content = json.loads(parameter)
    choice = read_choice(content)
    sizes = choice.sizes.rows, choice.sizes.lengths
    folder = EngineFolder(find_engine_dir(root, content["engine"], choice.precision, *sizes))
    router = EngineRouter(execute, choice, free_dims)
    loader = EngineLoader(folder, router, _find_engine(facts, choice.precision), facts)
    loader.start_loading()
    return loader


def _find_engine(facts: RunnerFacts, precision: str) -> LoadEngine | None:
    try:
        from tidegate_dataplane.engines.openvino_engine import load_network
    except ImportError:
        return None
    opened: dict[str, Lookups] = {}

    def load_engine(bucket: CompiledBucket, read_file: ReadFile) -> Engine:
        if bucket.lookups and bucket.lookups not in opened:
            graph = read_file(f"{bucket.lookups}.lookups", bucket.lookups)
            opened[bucket.lookups] = Lookups(graph, facts.threads)
        lookups = opened.get(bucket.lookups)
        blob = read_file(bucket.file, bucket.sha256)
        names = list_network_names([name for name, _ in bucket.shape], facts.outputs, lookups)
        network = load_network(blob, *names, precision=precision, threads=facts.threads)
        return SplitEngine(lookups, network, checked=bucket.checked, outputs=facts.outputs)

    return load_engine

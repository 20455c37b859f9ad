"""Compile the shapes that a version's requests often have, one at a time, once its graph is compiled."""

import hashlib
import importlib.metadata
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

import tidegate_dataplane.engines
from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.compiler.compile_cache import CompileCache
from tidegate_dataplane.compiler.exchange import SCRATCH_PREFIX, CompileFolder, CompileJob, RunModule
from tidegate_dataplane.compiler.shared_graphs import describe_passes
from tidegate_dataplane.contract import EngineOrder
from tidegate_dataplane.engines.bucket_shapes import BucketShape
from tidegate_dataplane.engines.engine_folder import ENGINE_FILE, CompiledBucket, EngineFolder, describe_shape

log = structlog.get_logger()

MAX_BUCKETS: Final = 16
"""Engines of one version."""
MAX_TRIED: Final = 64
"""Shapes that are compiled or left out for one version."""
MAX_FOLDER_BYTES: Final = 2 << 30
MAX_ATTEMPTS: Final = 2
_MODULE: Final = "tidegate_dataplane.compiler.compile_engine"


class EngineJobs:
    """The engines of the ordered version: takes what runners refuse out, and compiles what they miss most."""

    def __init__(
        self, folder: CompileFolder, scratch_dir: Path, cache: CompileCache, run_module: RunModule
    ) -> None:
        self._folder, self._scratch_dir, self._cache, self._run_module = (
            folder,
            scratch_dir,
            cache,
            run_module,
        )

    def compile_next(self, job: CompileJob) -> bool:
        """Compile the bucket that is missed most often; return whether there was one."""
        if job.engine is None:
            return False
        engines = self._folder.find_engines(job.digest, job.engine)
        buckets = _drop_refused(engines)
        shape = _pick_shape(engines, buckets)
        if shape is None:
            return False
        earlier = buckets.get(shape, CompiledBucket(shape))
        # Counted before it begins, so that an attempt that takes the compiler with it counts too.
        buckets[shape] = replace(earlier, attempts=earlier.attempts + 1)
        engines.write_buckets(buckets.values())
        with TemporaryDirectory(dir=self._scratch_dir, prefix=SCRATCH_PREFIX) as scratch:
            try:
                bucket = self._compile_shape(job, job.engine, shape, Path(scratch))
            except BaseException:
                buckets[shape] = earlier
                engines.write_buckets(buckets.values())
                raise
            if bucket is None and earlier.attempts + 1 < MAX_ATTEMPTS:
                return True
            buckets[shape] = self._store_bucket(engines, bucket or _give_up(shape), Path(scratch))
        engines.write_buckets(buckets.values())
        log.info("engine_compiled", model=job.model, version=job.version, **_describe_bucket(buckets[shape]))
        return True

    def _compile_shape(
        self, job: CompileJob, order: EngineOrder, shape: BucketShape, scratch: Path
    ) -> CompiledBucket | None:
        """Return what became of a shape, its engine in `scratch`; None if the process ended without a result."""
        result = self._folder.read_result(job.digest)
        compiled = result is not None and bool(result.graph_sha256)
        source = self._folder.graph_path(job.digest) if compiled else job.source
        arguments = [str(source), str(scratch), order.engine.value, order.precision.value, json.dumps(shape)]
        key = make_engine_key(job.digest, source, order, shape)
        cached = self._load_cached(job, arguments, key, scratch)
        if cached is not None:
            return cached
        status = self._run_module(job, _MODULE, arguments)
        if status is None:
            return CompiledBucket(
                shape, reason="it took too long: the node has too little idle processor time"
            )
        buckets = EngineFolder(scratch).read_buckets()
        if status != 0 or len(buckets) != 1:
            return None
        if buckets[0].file:
            _share_engine(self._cache, key, buckets[0], scratch / ENGINE_FILE)
        return buckets[0]

    def _load_cached(
        self, job: CompileJob, arguments: Sequence[str], key: str, scratch: Path
    ) -> CompiledBucket | None:
        """Return the engine of another pod, after comparing it with the graph again."""
        engine = scratch / ENGINE_FILE
        try:
            speedup = _copy_shared_engine(self._cache, key, engine)
        except Exception as error:  # noqa: BLE001 - pods of other models write it, and a compilation replaces it
            log.warning(
                "shared_engine_unreadable", model=job.model, version=job.version, key=key, error=str(error)
            )
            return None
        if speedup is None:
            return None
        status = self._run_module(job, _MODULE, [*arguments, f"--candidate={engine}"])
        # What the graph tells is taken from the graph; the record has the measurement alone.
        proved = EngineFolder(scratch).read_buckets()
        if status == 0 and len(proved) == 1 and proved[0].file:
            return replace(proved[0], speedup=speedup, cached=True)
        log.warning("shared_engine_refused", model=job.model, version=job.version, key=key)
        engine.unlink()
        return None

    def _store_bucket(self, engines: EngineFolder, bucket: CompiledBucket, scratch: Path) -> CompiledBucket:
        """Move the engine to where the runners load it, if it fits."""
        if not bucket.file:
            return bucket
        blob, lookups = scratch / ENGINE_FILE, EngineFolder(scratch).lookups_path(bucket.lookups)
        stored = engines.lookups_path(bucket.lookups)
        added = [blob] if not bucket.lookups or stored.exists() else [blob, lookups]
        used = sum(
            path.stat().st_size for path in (*engines.root.glob("*.engine"), *engines.root.glob("*.lookups"))
        )
        if used + sum(path.stat().st_size for path in added) > MAX_FOLDER_BYTES:
            reason = f"the engines of the version would take more than {MAX_FOLDER_BYTES >> 20} MiB"
            return CompiledBucket(bucket.shape, reason=reason)
        if lookups in added:
            lookups.replace(stored)
        sha256 = hash_file(blob)
        blob.replace(engines.root / f"{sha256}.engine")
        return replace(bucket, file=f"{sha256}.engine", sha256=sha256)


def _copy_shared_engine(cache: CompileCache, key: str, target: Path) -> float | None:
    """Copy an engine of another pod and return its measured speedup; None if there is none."""
    record = cache.read_file(f"{key}.bucket")
    if record is None:
        return None
    content = json.loads(record)
    # Its name of a file is not used: it could be that of a file elsewhere.
    speedup = float(content["speedup"]) if content["file"] else math.nan
    if not math.isfinite(speedup) or not cache.copy_file(str(content["sha256"]), ".engine", target):
        return None
    return speedup


def _share_engine(cache: CompileCache, key: str, bucket: CompiledBucket, engine: Path) -> None:
    """Add an engine, under its own digest, and then the record that names it."""
    try:
        sha256 = hash_file(engine)
        if cache.add_file(f"{sha256}.engine", engine):
            cache.add_file(f"{key}.bucket", json.dumps(asdict(replace(bucket, sha256=sha256))).encode())
    except Exception as error:  # noqa: BLE001 - whatever the cache has, the engine serves this pod
        log.warning("engine_not_shared", key=key, error=str(error))


def make_engine_key(digest: str, source: Path, order: EngineOrder, shape: BucketShape) -> str:
    """Return the key of an engine compiled here: another graph, library, processor or shape makes another one.

    `digest` is that of the artefact, since weights may be in files beside `source`.
    """
    package, compiler = Path(tidegate_dataplane.engines.__file__).parent, Path(__file__).parent
    paths = [*sorted(package.glob("*.py")), compiler / "compile_engine.py", compiler / "split_graph.py"]
    mode = [order.engine.value, order.precision.value]
    content = [digest, hash_file(source), mode, shape, [hash_file(path) for path in paths], _find_openvino()]
    return hashlib.sha256(json.dumps([*content, *describe_passes()]).encode()).hexdigest()


def _find_openvino() -> str:
    try:
        return importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        return ""


def _drop_refused(engines: EngineFolder) -> dict[BucketShape, CompiledBucket]:
    """Return the buckets by shape, without the engines that a runner does not use."""
    buckets = {bucket.shape: bucket for bucket in engines.read_buckets()}
    refused = {
        shape: reason
        for shape, reason in engines.read_notes().refused
        if shape in buckets and buckets[shape].file
    }
    for shape, reason in refused.items():
        (engines.root / buckets[shape].file).unlink(missing_ok=True)
        buckets[shape] = CompiledBucket(shape, reason=reason)
    read = {engines.lookups_path(bucket.lookups) for bucket in buckets.values()}
    for path in engines.root.glob("*.lookups"):
        if path not in read:
            path.unlink()
    if refused:
        engines.write_buckets(buckets.values())
    return buckets


def _pick_shape(engines: EngineFolder, buckets: dict[BucketShape, CompiledBucket]) -> BucketShape | None:
    """Return the shape that is missed most often and may be compiled."""
    finished = [bucket for bucket in buckets.values() if bucket.file or bucket.reason]
    if len(finished) >= MAX_TRIED or sum(bool(bucket.file) for bucket in finished) >= MAX_BUCKETS:
        return None
    for shape, bucket in buckets.items():
        if not bucket.file and not bucket.reason and bucket.attempts >= MAX_ATTEMPTS:
            buckets[shape] = _give_up(shape)
            engines.write_buckets(buckets.values())
    settled = {shape for shape, bucket in buckets.items() if bucket.file or bucket.reason}
    return next((shape for shape, _ in engines.read_notes().missed if shape not in settled), None)


def _give_up(shape: BucketShape) -> CompiledBucket:
    reason = (
        f"the compiler ended {MAX_ATTEMPTS} times, most likely at its memory limit: raise spec.compile.memory"
    )
    return CompiledBucket(shape, reason=reason)


def _describe_bucket(bucket: CompiledBucket) -> dict[str, object]:
    return {
        "shape": describe_shape(bucket.shape),
        "engine": bucket.engine,
        "speedup": bucket.speedup,
        "cached": bucket.cached,
        "reason": bucket.reason,
    }

"""The compiler's loop: read the agent's job, compile it in a process of its own, and write the result."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
from pydantic import ValidationError

from tidegate_dataplane.agent.artefacts.node_cache import NodeCache
from tidegate_dataplane.compiler.cache_exchange import CacheExchange
from tidegate_dataplane.compiler.compile_cache import CompileCache
from tidegate_dataplane.compiler.engine_jobs import EngineJobs
from tidegate_dataplane.compiler.exchange import (
    GRAPH_FILE,
    SCRATCH_PREFIX,
    CompileFolder,
    CompileJob,
    CompileResult,
    read_comparison,
)
from tidegate_dataplane.compiler.request_checks import RequestChecks
from tidegate_dataplane.compiler.request_wait import RequestWait
from tidegate_dataplane.compiler.settings import CompilerSettings
from tidegate_dataplane.compiler.shared_graphs import SharedGraphs, make_cache_key

log = structlog.get_logger()

MAX_ATTEMPTS = 2
OWN_MEMORY_BYTES = 96 << 20
"""Of the container's limit, for the loop itself."""
NICENESS = 19
CRASH_PAUSE_S = 10.0
CHECK_S = 0.1


class _WithdrawnError(Exception):
    """The job is no longer to be compiled."""


class Compiler:
    """Compiles one job at a time; a job that is withdrawn or replaced ends its compilation."""

    def __init__(self, settings: CompilerSettings, should_stop: Callable[[], bool]) -> None:
        self._settings = settings
        self._should_stop = should_stop
        self._folder = CompileFolder(settings.exchange_dir)
        folder = settings.node_cache_dir
        node = None if folder is None else NodeCache(folder, settings.node_cache_bytes)
        self._store = CacheExchange(settings.cache_dir)
        self._job: CompileJob | None = None
        cache = CompileCache(node, self._store, self._is_ordered)
        self._shared = SharedGraphs(cache)
        self._engines = EngineJobs(self._folder, settings.exchange_dir, cache, self._run_module)
        self._wait = RequestWait(self._folder, settings.request_wait_s)
        self._checks = RequestChecks(self._folder, settings.exchange_dir, self._shared, self._run_module)

    def compile_jobs(self) -> None:
        """Compile jobs until told to stop; no error ends the process, since its end would make the pod unready."""
        for scratch in self._settings.exchange_dir.glob(f"{SCRATCH_PREFIX}*"):
            shutil.rmtree(scratch, ignore_errors=True)
        self._store.remove_requests()
        while not self._should_stop():
            job = self._folder.read_job()
            try:
                if job is None or not self._take_step(job):
                    time.sleep(self._settings.poll_s)
            except Exception:
                # A full disk, or a folder that the agent removes meanwhile.
                log.exception("compile_crashed", job=job)
                time.sleep(CRASH_PAUSE_S)

    def _take_step(self, job: CompileJob) -> bool:
        """Compile the graph of a job, else compare it on requests, else compile one of its engines; return whether one was due."""
        self._job = job
        if self._folder.read_result(job.digest) is None:
            if not self._wait.is_over(job):
                return False
            self.compile_job(job)
            return True
        try:
            return self._checks.check_next(job) or self._engines.compile_next(job)
        except _WithdrawnError:
            return True

    def compile_job(self, job: CompileJob) -> None:
        """Write the result of a job, unless the job or the compiler ends first."""
        scratch = Path(tempfile.mkdtemp(dir=self._settings.exchange_dir, prefix=SCRATCH_PREFIX))
        try:
            result = self._compile_in(job, scratch)
        except _WithdrawnError:
            self._folder.cancel_attempt(job.digest)
            return
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if result is not None:
            log.info(
                "compiled",
                model=job.model,
                version=job.version,
                changed=bool(result.graph_sha256),
                cached=result.cached,
                seconds=result.seconds,
                message=result.message,
            )

    def _compile_in(self, job: CompileJob, scratch: Path) -> CompileResult | None:
        """Return the result, written to its place; None if the attempt ended without one."""
        graph = scratch / GRAPH_FILE
        result = self._try_job(job, scratch)
        if result is not None:
            self._folder.write_result(job.digest, result, graph if result.graph_sha256 else None)
        return result

    def _try_job(self, job: CompileJob, scratch: Path) -> CompileResult | None:
        """Return the result, with its graph in `scratch`; None if the attempt ended without one."""
        attempts = self._folder.count_attempts(job.digest)
        if attempts >= MAX_ATTEMPTS:
            return CompileResult(message=self._explain_ends())
        self._folder.begin_attempt(job.digest)
        requests = self._folder.list_requests(job.digest)
        result = self._compile_graph(job, scratch, requests, may_share=attempts == 0)
        for path in requests:
            path.unlink(missing_ok=True)
        return result

    def _compile_graph(
        self, job: CompileJob, scratch: Path, requests: Sequence[Path], *, may_share: bool
    ) -> CompileResult | None:
        """Return the result of another pod, else that of the passes; both are proved on requests of clients as well."""
        options = [f"--request={path}" for path in requests]
        key = make_cache_key(job)
        cached = self._load_cached(job, key, scratch, options) if may_share else None
        if cached is not None:
            return cached
        result = self._run_passes(job, scratch, options)
        if result is not None and result.graph_sha256:
            self._shared.store_result(key, result, scratch / GRAPH_FILE)
        return result

    def _load_cached(
        self, job: CompileJob, key: str, scratch: Path, options: Sequence[str]
    ) -> CompileResult | None:
        """Return the result of another pod, after comparing its graph with the published one again."""
        graph = scratch / GRAPH_FILE
        result = self._shared.load_result(key, graph)
        if result is None or not result.graph_sha256:
            return result
        self._run_process(job, scratch, f"--candidate={graph}", *options)
        comparison = read_comparison(scratch)
        if comparison is not None and not comparison.error:
            return result.model_copy(update={"compared_requests": comparison.answered})
        error = "" if comparison is None else comparison.error
        log.warning("shared_graph_refused", model=job.model, version=job.version, key=key, error=error)
        graph.unlink(missing_ok=True)
        return None

    def _run_passes(self, job: CompileJob, scratch: Path, options: Sequence[str]) -> CompileResult | None:
        """Return what the passes made of the job; None if they ended without a result, so that they are tried again."""
        status = self._run_process(job, scratch, *options)
        if status is None:
            return CompileResult(message=self._explain_timeout())
        try:
            return CompileResult.model_validate_json((scratch / "result.json").read_bytes())
        except (OSError, ValidationError):
            log.warning("compile_ended", model=job.model, version=job.version, status=status)
            return None

    def _run_process(self, job: CompileJob, output: Path, *own_options: str) -> int | None:
        """Run the passes with these options as a process, as `_run_module` does."""
        shared = (f"--shared-input={name}" for name in job.shared_inputs)
        options = [f"--max-rows={job.max_rows}", *shared, *own_options]
        arguments = [str(job.source), str(output), *options]
        return self._run_module(job, "tidegate_dataplane.compiler.optimize", arguments)

    def _run_module(self, job: CompileJob, module: str, arguments: Sequence[str]) -> int | None:
        """Run a module as a process; return its exit status, None if it took too long.

        Raises:
            _WithdrawnError: the job is no longer ordered, or the compiler is to stop.
        """
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, preexec_fn=self._limit_process)
        deadline = time.monotonic() + self._settings.timeout_s
        try:
            while process.poll() is None:
                if not self._is_ordered():
                    raise _WithdrawnError
                if time.monotonic() > deadline:
                    return None
                time.sleep(CHECK_S)
            return process.returncode
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _is_ordered(self) -> bool:
        """Return whether the job in progress is still ordered, and the compiler is not to stop."""
        return not self._should_stop() and self._folder.read_job() == self._job

    def _limit_process(self) -> None:
        os.nice(NICENESS)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        limit = self._settings.memory_bytes
        if limit is not None:
            bound = max(limit - OWN_MEMORY_BYTES, limit // 2)
            resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))

    def _explain_ends(self) -> str:
        limit = self._settings.memory_bytes
        bound = "" if limit is None else f" of {limit >> 20} MiB"
        return (
            f"the compiler ended {MAX_ATTEMPTS} times before it was done, most likely at its memory limit{bound}: "
            "raise spec.compile.memory; the log of container compiler has more"
        )

    def _explain_timeout(self) -> str:
        return (
            f"it took more than {self._settings.timeout_s:g} s: the graph is too large for the passes, or the node has too little "
            "idle processor time; remove spec.compile, or run tidegate optimize before you publish the model"
        )

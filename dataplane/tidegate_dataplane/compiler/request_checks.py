"""Compare the served graph with the published one on requests of clients, again and again, and withdraw one that differs."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

from tidegate_dataplane.compiler.exchange import (
    SCRATCH_PREFIX,
    CompileFolder,
    CompileJob,
    CompileResult,
    RequestComparison,
    RunModule,
    read_comparison,
)
from tidegate_dataplane.compiler.shared_graphs import SharedGraphs, make_cache_key

log = structlog.get_logger()

MIN_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 3_600.0
"""Between two comparisons: each pause is twice as long as the one before, since each takes seconds of a processor."""
_MODULE: Final = "tidegate_dataplane.compiler.compare_requests"


class RequestChecks:
    """The comparisons of the ordered version."""

    def __init__(
        self,
        folder: CompileFolder,
        scratch_dir: Path,
        shared: SharedGraphs,
        run_module: RunModule,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._scratch_dir, self._shared = folder, scratch_dir, shared
        self._run_module, self._clock = run_module, clock
        self._digest = ""
        self._pause_s, self._next_s = MIN_PAUSE_S, 0.0

    def check_next(self, job: CompileJob) -> bool:
        """Compare the graphs on the requests that runners have kept, if that is due; return whether it was."""
        result = self._folder.read_result(job.digest)
        if result is None or not result.graph_sha256:
            self._folder.drop_requests(job.digest)
            return False
        now = self._clock()
        if job.digest != self._digest:
            self._digest, self._pause_s, self._next_s = job.digest, MIN_PAUSE_S, now
        self._folder.ask_for_requests(job.digest)
        requests = self._folder.list_requests(job.digest)
        if now < self._next_s or not requests:
            return False
        self._next_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        comparison = self._compare_files(job, requests)
        if comparison is None:
            log.warning("requests_not_compared", model=job.model, version=job.version)
        elif comparison.error:
            self._withdraw_graph(job, result, comparison)
        else:
            self._folder.add_compared(job.digest, comparison.answered)
        for path in requests:
            path.unlink(missing_ok=True)
        return True

    def _compare_files(self, job: CompileJob, requests: Sequence[Path]) -> RequestComparison | None:
        """Return what the comparison says; None if it ended without a result."""
        with TemporaryDirectory(dir=self._scratch_dir, prefix=SCRATCH_PREFIX) as scratch:
            graph = self._folder.graph_path(job.digest)
            shared = (f"--shared-input={name}" for name in job.shared_inputs)
            paths = map(str, (job.source, graph, scratch, *requests))
            self._run_module(job, _MODULE, [*paths, *shared])
            return read_comparison(Path(scratch))

    def _withdraw_graph(self, job: CompileJob, result: CompileResult, comparison: RequestComparison) -> None:
        """Let the version serve as published, in this pod and in the next ones of the node."""
        log.error("graph_withdrawn", model=job.model, version=job.version, error=comparison.error)
        current = self._folder.read_result(job.digest)
        if current is None or current.graph_sha256 != result.graph_sha256:
            return  # the agent has given it up meanwhile, because the server does not load it
        # They were compiled from that graph.
        self._folder.drop_engines(job.digest)
        message = (
            f"the compiled graph answered requests of clients otherwise: {comparison.error}; log requests with spec.logging and run "
            "`tidegate optimize --requests` to see which pass does it, or remove spec.compile"
        )
        withdrawn = result.model_copy(update={"graph_sha256": "", "shared_inputs": (), "message": message})
        self._folder.write_result(job.digest, withdrawn)
        self._shared.withdraw_result(make_cache_key(job), withdrawn)

"""Compiled graphs that pods share, by everything that decides them: content, passes, libraries, instruction set."""

import hashlib
import importlib.metadata
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict

import tidegate_dataplane.graph_passes
from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.compiler.compile_cache import CompileCache
from tidegate_dataplane.compiler.exchange import CompileJob, CompileResult

Record = TypeVar("Record", bound=BaseModel)

LIBRARIES = ("onnx", "onnx-ir", "onnxscript", "onnxruntime", "numpy")
CPU_INFO = Path("/proc/cpuinfo")
WITHDRAWAL_S: Final = 86_400.0
"""Seconds after which a withdrawal ends, so that the graph gets another trial, unless an earlier trial ended in one too."""


def make_cache_key(job: CompileJob) -> str:
    """Return the key of a graph compiled here: other passes, libraries or processors make and measure another one."""
    content = [job.digest, job.max_rows, sorted(job.shared_inputs), *describe_passes()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def describe_passes() -> list[object]:
    """Return what a graph that is compiled or compared here depends on, beside its content."""
    passes = Path(tidegate_dataplane.graph_passes.__file__).parent
    sources = [(path.name, hash_file(path)) for path in sorted(passes.glob("*.py"))]
    versions = [importlib.metadata.version(library) for library in LIBRARIES]
    return [sources, versions, platform.machine(), read_processor()]


class Withdrawal(BaseModel):
    """The result of a graph that answered a request of a client otherwise, and the last time that one did, in seconds since 1970."""

    model_config = ConfigDict(frozen=True)

    result: CompileResult
    at_s: float
    times: int = 1


class SharedGraphs:
    """Results and graphs that pods share; each graph is checked against its digest when it is read."""

    def __init__(self, cache: CompileCache, clock: Callable[[], float] = time.time) -> None:
        self._cache, self._clock = cache, clock

    def load_result(self, key: str, target: Path) -> CompileResult | None:
        """Return a result, with its graph copied to `target` unless it was withdrawn; None if there is none or it is damaged."""
        result = self._read_record(f"{key}.result", CompileResult)
        withdrawal = self._read_withdrawal(key, result)
        if withdrawal is not None and (withdrawal.times > 1 or not self._has_ended(withdrawal)):
            return withdrawal.result.model_copy(update={"cached": True})
        try:
            if result is None or not self._cache.copy_file(result.graph_sha256, ".graph", target):
                return None
        except (OSError, ValueError):
            return None
        return result.model_copy(update={"cached": True, "compared_requests": 0})

    def withdraw_result(self, key: str, result: CompileResult) -> None:
        """Let other pods know that a graph answers otherwise, so that they do not compile it again.

        Pods that serve the same graph withdraw it within seconds: only one from a trial after the first day confirms it.
        """
        earlier = self._read_withdrawal(key, self._read_record(f"{key}.result", CompileResult))
        if earlier is not None and not self._has_ended(earlier):
            return
        times = 1 if earlier is None else earlier.times + 1
        withdrawal = Withdrawal(result=result, at_s=self._clock(), times=times)
        self._cache.add_file(f"{key}.withdrawal", withdrawal.model_dump_json().encode())

    def _has_ended(self, withdrawal: Withdrawal) -> bool:
        return abs(self._clock() - withdrawal.at_s) >= WITHDRAWAL_S

    def _read_withdrawal(self, key: str, result: CompileResult | None) -> Withdrawal | None:
        """Return the withdrawal of a graph; None if there is none.

        Earlier releases wrote a result without a graph instead, as old as its name in the cache.
        """
        withdrawal = self._read_record(f"{key}.withdrawal", Withdrawal)
        if withdrawal is not None:
            return withdrawal
        if result is None or result.graph_sha256:
            return None
        written_at_s = self._cache.find_time_added(f"{key}.result")
        return Withdrawal(result=result, at_s=written_at_s) if written_at_s is not None else None

    def _read_record(self, name: str, kind: type[Record]) -> Record | None:
        """Return a record of the cache; None if there is none or it is damaged."""
        try:
            content = self._cache.read_file(name)
            return None if content is None else kind.model_validate_json(content)
        except (OSError, ValueError):  # not text, or no such record
            return None

    def store_result(self, key: str, result: CompileResult, graph: Path) -> None:
        """Add a graph, under its own digest, and then the result that names it."""
        if self._cache.add_file(f"{result.graph_sha256}.graph", graph):
            self._cache.add_file(f"{key}.result", result.model_dump_json().encode())


def read_processor() -> str:
    """Return the model and the instruction set of the first processor; empty where Linux does not say."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    fields = ("model name", "flags", "Features", "CPU part")
    first = lines[: lines.index("")] if "" in lines else lines
    return "\n".join(line for line in first if line.startswith(fields))

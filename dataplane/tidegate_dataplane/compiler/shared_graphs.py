"""Compiled graphs in the node's cache, by everything that decides them: content, passes, libraries, instruction set."""

import hashlib
import importlib.metadata
import json
import platform
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

import tidegate_dataplane.graph_passes
from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.agent.artefacts.node_cache import NodeCache
from tidegate_dataplane.compiler.exchange import CompileResult

Record = TypeVar("Record", bound=BaseModel)

LIBRARIES = ("onnx", "onnx-ir", "onnxscript", "onnxruntime", "numpy")
CPU_INFO = Path("/proc/cpuinfo")
WITHDRAWAL_S: Final = 86_400.0
"""Seconds after which a withdrawal ends, so that the graph gets another trial, unless a second one has confirmed it."""


def make_cache_key(digest: str, shared_inputs: Sequence[str] = ()) -> str:
    """Return the key of a graph compiled here: other passes, libraries or processors make and measure another one."""
    content = [digest, sorted(shared_inputs), *describe_passes()]
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
    """Results and graphs that pods of one namespace share on a node; each is checked against its digest when it is read."""

    def __init__(self, cache: NodeCache | None, clock: Callable[[], float] = time.time) -> None:
        self._cache, self._clock = cache, clock

    def load_result(self, key: str, target: Path) -> CompileResult | None:
        """Return a result, with its graph copied to `target` unless it was withdrawn; None if there is none or it is damaged."""
        if self._cache is None:
            return None
        withdrawal = self._read_record(f"{key}.withdrawal", Withdrawal)
        if withdrawal is not None and (
            withdrawal.times > 1 or self._clock() - withdrawal.at_s < WITHDRAWAL_S
        ):
            return withdrawal.result.model_copy(update={"cached": True})
        result = self._read_record(f"{key}.result", CompileResult)
        graph = self._cache.find_intact(f"{key}.graph")
        if result is None or graph is None or graph.name != result.graph_sha256:
            return None
        try:
            shutil.copyfile(graph, target)
        except OSError:
            return None
        return result.model_copy(update={"cached": True, "compared_requests": 0})

    def withdraw_result(self, key: str, result: CompileResult) -> None:
        """Let other pods of the node know that a graph answers otherwise, so that they do not compile it again."""
        if self._cache is None:
            return
        earlier = self._read_record(f"{key}.withdrawal", Withdrawal)
        times = 1 if earlier is None else earlier.times + 1
        withdrawal = Withdrawal(result=result, at_s=self._clock(), times=times)
        add_cache_file(self._cache, f"{key}.withdrawal", withdrawal.model_dump_json().encode())

    def _read_record(self, name: str, kind: type[Record]) -> Record | None:
        """Return a record of the cache; None if there is none or it is damaged."""
        path = self._cache.find_intact(name) if self._cache is not None else None
        try:
            return None if path is None else kind.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            return None

    def store_result(self, key: str, result: CompileResult, graph: Path) -> None:
        """Add a result and its graph, if they fit."""
        if self._cache is not None and add_cache_file(self._cache, f"{key}.graph", graph.read_bytes()):
            add_cache_file(self._cache, f"{key}.result", result.model_dump_json().encode())


def add_cache_file(cache: NodeCache, name: str, content: bytes) -> bool:
    """Add a file to the node's cache; return whether it fits."""
    entry = cache.begin_entry(len(content))
    if entry is None:
        return False
    entry.append(content)
    entry.finish(name, complete=True, expected_sha256=None)
    return True


def read_processor() -> str:
    """Return the model and the instruction set of the first processor; empty where Linux does not say."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return ""
    fields = ("model name", "flags", "Features", "CPU part")
    first = lines[: lines.index("")] if "" in lines else lines
    return "\n".join(line for line in first if line.startswith(fields))

"""Compiled files that pods on several nodes share through an object store, which their agents alone can reach."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import pytest

from builders.desired import a_desired_state
from builders.waiting import LIMIT_S
from tidegate_dataplane.agent import compile_store
from tidegate_dataplane.agent.artefacts.checksum import hash_file
from tidegate_dataplane.agent.artefacts.node_cache import NodeCache
from tidegate_dataplane.agent.artefacts.source import Download, ResumePoint
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri
from tidegate_dataplane.agent.compile_store import MIN_PAUSE_S, CompileStore
from tidegate_dataplane.agent.refusals import ArtefactError, DeniedError
from tidegate_dataplane.compiler import cache_exchange
from tidegate_dataplane.compiler.cache_exchange import CacheExchange
from tidegate_dataplane.compiler.compile_cache import ANSWER_S, SILENCE_S, CompileCache
from tidegate_dataplane.compiler.exchange import CompileResult
from tidegate_dataplane.compiler.shared_graphs import SharedGraphs
from tidegate_dataplane.contract import FailureReason

URI = "s3://models/compiled"
KEY = hashlib.sha256(b"key").hexdigest()


class FakeStore:
    """An object store with one folder; `error` is what each request fails with."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.error: ArtefactError | None = None
        self.refused: dict[str, ArtefactError] = {}
        self.calls: list[str] = []
        self.while_putting: Callable[[], None] = lambda: None

    @asynccontextmanager
    async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Download, None]:
        assert resume is None
        self.calls.append(f"get {path}")
        if self.error is not None:
            raise self.error
        if path not in self.files:
            raise ArtefactError(FailureReason.ARTEFACT_NOT_FOUND, f"there is no {path}")
        yield Download(len(self.files[path]), _chunks(self.files[path]))

    async def list(self, folder: str) -> tuple[str, ...]:
        raise NotImplementedError

    async def identify_content(self, path: str) -> str:
        raise NotImplementedError

    async def put_file(self, path: str, file: IO[bytes]) -> None:
        self.calls.append(f"put {path}")
        error = self.refused.get(path, self.error)
        if error is not None:
            raise error
        self.files[path] = await asyncio.to_thread(file.read)
        self.while_putting()


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 3):
        yield content[start : start + 3]


class StorePod:
    """The compiler and the agent of one pod; the agent acts whenever the compiler waits for it."""

    def __init__(self, folder: Path, store: FakeStore, *, on_node: bool = False, uri: str = URI) -> None:
        self.now_s = 0.0
        self.root, self.graph = folder / "compiled", folder / "graph.onnx"
        self.exchange = CacheExchange(self.root)
        self.uris: list[ArtefactUri] = []

        def open_store(uri: ArtefactUri) -> FakeStore:
            self.uris.append(uri)
            return store

        self.agent = CompileStore(self.exchange, open_store, lambda: self.now_s)
        self.agent.follow_order(a_desired_state(graph_passes=True, compile_cache=uri))
        self.let_agent_act()
        self.node = NodeCache(folder / "node", 1 << 20) if on_node else None
        self.cache = CompileCache(self.node, self.exchange, self.let_agent_act, lambda: self.now_s)
        self.shared = SharedGraphs(self.cache)
        folder.mkdir(exist_ok=True)

    def let_agent_act(self) -> bool:
        """Let the agent act; return that the compiler may wait."""
        asyncio.run(self.agent.answer_requests())
        asyncio.run(self.agent.write_offers())
        return True

    def compile(self, content: bytes = b"a compiled graph") -> CompileResult:
        self.graph.write_bytes(content)
        result = CompileResult(graph_sha256=hash_file(self.graph), nodes_after=7)
        self.shared.store_result(KEY, result, self.graph)
        return result

    def load(self) -> CompileResult | None:
        return self.shared.load_result(KEY, self.graph)


def test_a_pod_of_another_node_takes_the_graph_that_the_first_compiled(tmp_path: Path) -> None:
    store = FakeStore()
    first, second = StorePod(tmp_path / "a", store), StorePod(tmp_path / "b", store, on_node=True)
    assert first.load() is None
    compiled = first.compile()
    assert store.files == {}, "the compiler has no credentials"
    first.let_agent_act()
    assert sorted(store.files) == sorted([f"{compiled.graph_sha256}.graph", f"{KEY}.result"])
    assert [call for call in store.calls if call.startswith("put")] == [
        f"put {compiled.graph_sha256}.graph",
        f"put {KEY}.result",
    ], "the result comes after the graph that it names"

    assert second.load() == compiled.model_copy(update={"cached": True})
    assert second.graph.read_bytes() == b"a compiled graph"
    assert {str(uri) for uri in first.uris + second.uris} == {URI}
    assert list((tmp_path / "b" / "compiled" / "found").iterdir()) == []
    # Its node has it from now on.
    store.calls.clear()
    second.graph.unlink()
    assert second.load() is not None
    assert [call for call in store.calls if call.endswith((".graph", ".result"))] == []


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param({".graph": b"another graph"}, id="another graph"),
        pytest.param({".graph": None}, id="no graph"),
        pytest.param({".result": b"no record"}, id="no record"),
        pytest.param({".result": b'{"graph_sha256": "../../../etc/passwd"}'}, id="a path"),
        pytest.param({".result": b'{"graph_sha256": "abc"}'}, id="no digest"),
        pytest.param({".result": b"{" * (1 << 20) + b"{"}, id="too large"),
    ],
)
def test_what_the_store_has_otherwise_is_not_taken(tmp_path: Path, damage: dict[str, bytes | None]) -> None:
    store = FakeStore()
    first, second = StorePod(tmp_path / "a", store), StorePod(tmp_path / "b", store)
    first.compile()
    first.let_agent_act()
    for suffix, content in damage.items():
        [name] = [name for name in store.files if name.endswith(suffix)]
        if content is None:
            del store.files[name]
        else:
            store.files[name] = content
    assert second.load() is None
    assert not second.graph.exists()
    # It compiles, and mends what was damaged.
    second.compile()
    second.let_agent_act()
    second.now_s += MIN_PAUSE_S
    second.let_agent_act()
    assert StorePod(tmp_path / "c", store).load() is not None


def test_while_the_store_is_away_no_compiler_waits_for_it_and_nothing_is_lost(tmp_path: Path) -> None:
    store = FakeStore()
    pod = StorePod(tmp_path / "a", store)
    store.error = ArtefactError(FailureReason.FETCH_FAILED, f"{URI}/x cannot be fetched")
    assert pod.load() is None
    assert pod.agent.problem == f"{URI}/x cannot be fetched"
    calls = len(store.calls)
    pod.compile()
    pod.let_agent_act()
    assert pod.load() is None
    assert len(store.calls) == calls, "it is not asked again at once"
    pod.now_s += MIN_PAUSE_S
    pod.let_agent_act()
    pod.now_s += MIN_PAUSE_S
    pod.let_agent_act()
    assert len(store.calls) == calls + 1, "the pause has doubled"
    store.error = None
    pod.now_s += MIN_PAUSE_S
    pod.let_agent_act()
    assert (pod.agent.problem, len(store.files)) == ("", 2)
    assert StorePod(tmp_path / "b", store).load() is not None


def test_a_store_that_is_back_and_has_no_file_is_no_problem_any_more(tmp_path: Path) -> None:
    store = FakeStore()
    pod = StorePod(tmp_path / "a", store)
    store.error = ArtefactError(FailureReason.FETCH_FAILED, "away")
    assert pod.load() is None
    store.error = None
    pod.now_s += MIN_PAUSE_S
    assert pod.load() is None
    assert pod.agent.problem == ""


def test_a_store_that_denies_what_it_does_not_have_is_used(tmp_path: Path) -> None:
    """S3 does so where its folders may not be listed."""

    class Denying(FakeStore):
        @asynccontextmanager
        async def open(self, path: str, resume: ResumePoint | None = None) -> AsyncGenerator[Download, None]:
            if path not in self.files:
                raise DeniedError(f"{path} may not be read")
            async with super().open(path, resume) as download:
                yield download

    store = Denying()
    first, second = StorePod(tmp_path / "a", store), StorePod(tmp_path / "b", store)
    assert first.load() is None
    assert "may not be read" in first.agent.problem
    first.compile()
    first.let_agent_act()
    assert first.agent.problem == ""
    assert second.load() is not None


def test_one_file_that_the_store_refuses_keeps_no_other_from_it(tmp_path: Path) -> None:
    store = FakeStore()
    pod = StorePod(tmp_path / "a", store)
    result = pod.compile()
    store.refused[f"{result.graph_sha256}.graph"] = DeniedError("no")
    for _ in range(3):
        pod.now_s += 4 * MIN_PAUSE_S
        pod.let_agent_act()
    assert list(store.files) == [f"{KEY}.result"]


def test_a_file_that_is_replaced_while_it_is_written_is_written_again(tmp_path: Path) -> None:
    store = FakeStore()
    pod = StorePod(tmp_path / "a", store)
    pod.cache.add_file(f"{KEY}.result", b"old")

    def replace() -> None:
        store.while_putting = lambda: None
        pod.cache.add_file(f"{KEY}.result", b"new")

    store.while_putting = replace
    pod.let_agent_act()
    pod.let_agent_act()
    assert store.files == {f"{KEY}.result": b"new"}
    pod.let_agent_act()
    assert len(store.calls) == 2


def test_no_answer_is_left_for_a_request_that_was_withdrawn(tmp_path: Path) -> None:
    pod = StorePod(tmp_path / "a", FakeStore())
    pod.exchange.request_file(f"{KEY}.graph")
    with pod.exchange.answer_file(f"{KEY}.graph") as file:
        file.write(b"late")
        pod.exchange.withdraw_request(f"{KEY}.graph")
    assert list((pod.root / "found").iterdir()) == []


def test_an_agent_that_starts_again_answers_what_is_wanted_and_leaves_no_part(tmp_path: Path) -> None:
    store = FakeStore()
    pod = StorePod(tmp_path / "a", store)
    store.files[f"{KEY}.result"] = b"{}"
    pod.exchange.request_file(f"{KEY}.result")
    (pod.root / "found").mkdir()
    (pod.root / "found" / ".part").touch()
    pod.exchange.remove_answers()
    pod.let_agent_act()
    assert [path.name for path in (pod.root / "found").iterdir()] == [f"{KEY}.result"]


def test_no_record_names_a_graph_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_exchange, "MAX_FILE_BYTES", 3)
    store = FakeStore()
    pod = StorePod(tmp_path / "a", store)
    pod.compile()
    pod.let_agent_act()
    assert store.files == {}


async def test_a_folder_that_cannot_be_used_is_a_problem_of_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compiled").write_text("no folder")
    agent = CompileStore(CacheExchange(tmp_path / "compiled"), lambda _: FakeStore())
    agent.follow_order(a_desired_state(graph_passes=True, compile_cache=URI))
    slept = asyncio.Event()

    async def record_sleep(_: float) -> None:
        slept.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(compile_store.asyncio, "sleep", record_sleep)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(agent.read_files())
        await slept.wait()
        reading.cancel()
    assert agent.problem.startswith("the pod's disk: ")


def test_without_a_store_nothing_is_asked_or_kept(tmp_path: Path) -> None:
    store = FakeStore()
    pod = StorePod(tmp_path / "a", store)
    pod.compile()
    pod.agent.follow_order(a_desired_state(graph_passes=True))
    pod.let_agent_act()
    assert list(pod.root.iterdir()) == []
    pod.compile()
    assert pod.load() is None
    assert (store.calls, list(pod.root.iterdir())) == ([], [])


def test_an_order_without_graph_passes_has_no_store(tmp_path: Path) -> None:
    pod = StorePod(tmp_path / "a", FakeStore())
    pod.agent.follow_order(a_desired_state(graph_passes=False, compile_cache=URI))
    pod.let_agent_act()
    assert not pod.exchange.is_open


def test_only_files_of_a_compiler_are_written_to_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No link is followed, and nothing that is too large for its name."""
    store = FakeStore()
    pod = StorePod(tmp_path / "a", store)
    outgoing = pod.root / "outgoing"
    outgoing.mkdir()
    secret = tmp_path / "control-key"
    secret.write_text("secret")
    os.symlink(secret, outgoing / f"{KEY}.graph")
    os.mkfifo(outgoing / f"{KEY}.result")
    (outgoing / "model.onnx").write_bytes(b"x")
    (outgoing / f"{KEY}.engine").mkdir()
    monkeypatch.setattr(cache_exchange, "MAX_RECORD_BYTES", 3)
    (outgoing / f"{KEY}.bucket").write_bytes(b"1234")
    (pod.root / "wanted").mkdir()
    (pod.root / "wanted" / "..%2fsecret").touch()
    pod.let_agent_act()
    assert store.calls == []
    assert [path.name for path in outgoing.iterdir()] == ["model.onnx"]
    assert secret.read_text() == "secret"


def test_the_files_that_wait_for_a_store_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_exchange, "MAX_OUTGOING_BYTES", 300)
    store = FakeStore()
    pod = StorePod(tmp_path / "a", store)
    for number in range(9):
        pod.cache.add_file(f"{hashlib.sha256(bytes([number])).hexdigest()}.graph", bytes(100))
    pod.let_agent_act()
    assert len(store.files) == 3


def test_an_agent_that_is_gone_holds_a_compilation_up_once(tmp_path: Path) -> None:
    pod = StorePod(tmp_path / "a", FakeStore())

    def let_time_pass() -> bool:
        pod.now_s += 60
        return True

    pod.shared = SharedGraphs(CompileCache(None, pod.exchange, let_time_pass, lambda: pod.now_s))
    assert pod.load() is None
    waited_s = pod.now_s
    assert ANSWER_S <= waited_s < ANSWER_S + 120
    assert pod.load() is None
    assert pod.now_s == waited_s
    pod.now_s += SILENCE_S
    assert pod.load() is None
    assert pod.now_s > waited_s + SILENCE_S, "later it is asked again"


def test_a_compilation_that_is_no_longer_ordered_waits_for_no_file(tmp_path: Path) -> None:
    pod = StorePod(tmp_path / "a", FakeStore())
    pod.shared = SharedGraphs(CompileCache(None, pod.exchange, lambda: False))
    assert pod.load() is None
    assert pod.exchange.list_requests() == []


def test_a_compiler_that_starts_again_waits_for_nothing_of_the_one_before_and_loses_no_file(
    tmp_path: Path,
) -> None:
    store = FakeStore()
    pod = StorePod(tmp_path / "a", store)
    pod.exchange.request_file(f"{KEY}.result")
    pod.compile()
    (pod.root / "outgoing" / ".half").touch()
    pod.exchange.remove_requests()
    assert not (pod.root / "outgoing" / ".half").exists()
    pod.let_agent_act()
    assert [call.split()[0] for call in store.calls] == ["put", "put"]


def test_a_graph_that_cannot_be_read_leaves_no_entry_on_the_node(tmp_path: Path) -> None:
    pod = StorePod(tmp_path / "a", FakeStore(), on_node=True)
    assert pod.node is not None
    folder = tmp_path / "graph.onnx"
    folder.mkdir()  # has a size, and cannot be read
    descriptors = len(list(Path("/proc/self/fd").iterdir()))

    assert not pod.cache.add_file("graph", folder)

    assert list((pod.node.root / "incoming").iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors

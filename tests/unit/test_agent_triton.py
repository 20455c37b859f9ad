"""The agent asks its server every second what is ready, and what that is only when it can have changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tidegate_dataplane.agent import triton
from tidegate_dataplane.agent.config_text import ModelConfig
from tidegate_dataplane.agent.model_config import CONFIG_DIGEST
from tidegate_dataplane.agent.triton import DESCRIBE_EVERY_S, RPC_TIMEOUT_S, Triton
from tidegate_dataplane.contract import FailureReason


@dataclasses.dataclass
class PretendedClient:
    """A server with one model, as the client of Triton shows it; counts what it is asked of the model."""

    versions: tuple[int, ...] = (1,)
    digest: str = "first"
    loads_to: str = "second"
    asked: int = 0
    on_load: Callable[[], object] = lambda: None
    is_ready: bool = True
    ready_timeout_s: float = 0.0
    index_timeout_s: float = 0.0

    async def get_model_repository_index(self, *, client_timeout: float, **_: Any) -> Mapping[str, Any]:
        self.index_timeout_s = client_timeout
        models = [{"name": "m", "version": str(version), "state": "READY"} for version in self.versions]
        return {"models": models}

    async def get_model_config(self, _: str, **__: Any) -> Mapping[str, Any]:
        self.asked += 1
        return {"config": {"backend": "python", "parameters": {CONFIG_DIGEST: {"string_value": self.digest}}}}

    async def get_model_metadata(self, _: str, **__: Any) -> Mapping[str, Any]:
        return {"inputs": [{"name": "x", "datatype": "FP32", "shape": ["-1", "1"]}], "outputs": []}

    async def load_model(self, _: str, **__: Any) -> None:
        self.digest = self.loads_to
        self.on_load()

    async def is_model_ready(self, *_: Any, client_timeout: float, **__: Any) -> bool:
        self.ready_timeout_s = client_timeout
        return self.is_ready


class Clock:
    """A clock that goes when it is told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> PretendedClient:
    return PretendedClient()


@pytest.fixture
async def client(clock: Clock, server: PretendedClient, monkeypatch: pytest.MonkeyPatch) -> Triton:
    async def no_memory(_: str) -> Mapping[str, Any]:
        return {}

    monkeypatch.setattr(triton, "read_memory", no_memory)
    client = Triton("127.0.0.1:1", "key", metrics="127.0.0.1:1", clock=clock)
    await client.close()
    client._client = server
    return client


async def test_a_model_is_described_once_while_nothing_changes(
    client: Triton, server: PretendedClient
) -> None:
    states = [await client.observe("m") for _ in range(5)]
    assert server.asked == 1
    assert {(state.digests["m"], state.backends["m"], state.inputs[0].name) for state in states} == {
        ("first", "python", "x")
    }


async def test_a_load_of_the_same_version_is_seen_at_once(client: Triton, server: PretendedClient) -> None:
    assert (await client.observe("m")).digests == {"m": "first"}
    assert await client.load_version("m", 1, ModelConfig(name="m"), timeout_s=1) is None
    assert (await client.observe("m")).digests == {"m": "second"}


@pytest.mark.parametrize(("load_takes_s", "left_s"), [(40.0, 60.0), (99.0, RPC_TIMEOUT_S)])
async def test_a_load_and_the_questions_after_it_share_one_limit(
    client: Triton, server: PretendedClient, clock: Clock, load_takes_s: float, left_s: float
) -> None:
    def take_time() -> None:
        clock.now_s += load_takes_s

    server.on_load = take_time
    assert await client.load_version("m", 1, ModelConfig(name="m"), timeout_s=100.0) is None
    assert server.ready_timeout_s == left_s
    server.is_ready = False
    refusal = await client.load_version("m", 1, ModelConfig(name="m"), timeout_s=100.0)
    assert refusal is not None
    assert refusal.reason is FailureReason.LOAD_FAILED
    assert (server.ready_timeout_s, server.index_timeout_s) == (left_s, left_s)


async def test_another_set_of_ready_versions_is_described_again(
    client: Triton, server: PretendedClient
) -> None:
    await client.observe("m")
    server.versions, server.digest = (1, 2), "of both"
    assert (await client.observe("m")).digests == {"m": "of both"}


async def test_what_a_load_that_was_given_up_changes_later_is_seen_in_time(
    client: Triton, server: PretendedClient, clock: Clock
) -> None:
    await client.observe("m")
    server.digest = "late"
    clock.now_s = DESCRIBE_EVERY_S - 0.1
    assert (await client.observe("m")).digests == {"m": "first"}
    clock.now_s = DESCRIBE_EVERY_S
    assert (await client.observe("m")).digests == {"m": "late"}

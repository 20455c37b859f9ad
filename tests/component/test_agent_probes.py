"""The readiness probe, asked over a real socket about a pretended Triton."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient, TestServer

from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.probes import probes_app


@dataclasses.dataclass
class Pod:
    """What the probe looks at."""

    served_model: str | None = "ctr"
    active: bool = False
    answer: bool | None = True
    is_resting: bool = False
    broken_models: frozenset[str] = frozenset()

    @property
    def served_models(self) -> tuple[str, ...]:
        return () if self.served_model is None else (self.served_model,)

    async def is_ready(self, model: str) -> bool | None:
        assert model == self.served_model
        return self.answer


@pytest.fixture
def pod() -> Pod:
    return Pod()


@pytest_asyncio.fixture
async def client(pod: Pod) -> AsyncIterator[TestClient]:
    app = probes_app(pod, pod, pod, pod, AgentMetrics().render_text)  # type: ignore[arg-type]
    async with TestClient(TestServer(app, host="127.0.0.1")) as client:
        yield client


async def ready(client: TestClient) -> bool:
    async with client.get("/readyz") as response:
        return response.status == 200


async def test_ready_is_what_triton_says(client: TestClient, pod: Pod) -> None:
    assert await ready(client)

    pod.answer = False
    assert not await ready(client)


async def test_before_a_model_serves_it_is_not_ready(client: TestClient, pod: Pod) -> None:
    pod.served_model = None

    assert not await ready(client)


async def test_a_slow_answer_changes_nothing(client: TestClient, pod: Pod) -> None:
    pod.answer = None
    assert not await ready(client)

    pod.answer = True
    assert await ready(client)
    pod.answer = None
    assert await ready(client)


async def test_a_pod_whose_model_process_just_ended_is_not_ready(client: TestClient, pod: Pod) -> None:
    pod.is_resting = True
    assert not await ready(client)

    pod.is_resting, pod.broken_models = False, frozenset({"ctr"})
    assert not await ready(client)  # it is being loaded anew, however long that takes

    pod.broken_models = frozenset({"another"})
    assert await ready(client)


async def test_a_draining_pod_is_not_ready_and_still_alive(client: TestClient, pod: Pod) -> None:
    pod.active = True

    assert not await ready(client)
    async with client.get("/healthz") as response:
        assert response.status == 200

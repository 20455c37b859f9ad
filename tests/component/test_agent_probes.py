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

    served_models: tuple[str, ...] = ("ctr",)
    active: bool = False
    answer: bool | None = True
    resting_models: frozenset[str] = frozenset()
    broken_models: frozenset[str] = frozenset()

    async def is_ready(self, model: str) -> bool | None:
        assert model in self.served_models
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
    pod.served_models = ()

    assert not await ready(client)


async def test_a_slow_answer_changes_nothing(client: TestClient, pod: Pod) -> None:
    pod.answer = None
    assert not await ready(client)

    pod.answer = True
    assert await ready(client)
    pod.answer = None
    assert await ready(client)


async def test_a_pod_whose_model_process_just_ended_is_not_ready(client: TestClient, pod: Pod) -> None:
    pod.resting_models = frozenset({"ctr"})
    assert not await ready(client)

    pod.resting_models, pod.broken_models = frozenset(), frozenset({"ctr"})
    assert not await ready(client)  # it is being loaded anew, however long that takes

    pod.broken_models = frozenset({"another"})
    assert await ready(client)


async def test_the_end_of_one_models_process_takes_no_other_model_of_a_shared_pod_out_of_service(
    client: TestClient, pod: Pod
) -> None:
    pod.served_models, pod.resting_models = ("ctr", "cvr"), frozenset({"ctr"})
    assert await ready(client)
    pod.broken_models = frozenset({"cvr"})
    assert not await ready(client)


async def test_a_draining_pod_is_not_ready_and_still_alive(client: TestClient, pod: Pod) -> None:
    pod.active = True

    assert not await ready(client)
    async with client.get("/healthz") as response:
        assert response.status == 200

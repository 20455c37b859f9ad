"""The web process's application: what it shows, in which order, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest

from builders.inference import an_inference
from builders.model_access import a_model_access
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.model_access import ModelAccess
from tidegate.telemetry.prometheus import Traffic
from tidegate.web.app import create_app

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "AllReplicasReady",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


class FewObjects:
    """A fleet of two Inferences and one ModelAccess."""

    def inferences(self) -> tuple[Inference, ...]:
        ready = an_inference(
            "fine", status={"conditions": [READY], "versions": {"serving": "3", "target": "3"}}
        )
        return ready, an_inference("zz")

    def accesses(self) -> tuple[ModelAccess, ...]:
        return (a_model_access(),)

    def features(self) -> tuple[FeatureCompute, ...]:
        return ()


@pytest.fixture
async def client() -> httpx.AsyncClient:
    async def traffic() -> Mapping[str, Traffic]:
        return {"inference/ads/fine/grpc": Traffic(12.5, 8.0), "inference/ads/fine/http": Traffic(0.5, None)}

    transport = httpx.ASGITransport(app=create_app(FewObjects(), traffic))
    return httpx.AsyncClient(transport=transport, base_url="http://tidegate")


async def test_worst_objects_come_first_with_their_traffic(client: httpx.AsyncClient) -> None:
    shown = (await client.get("/api/v1/overview")).json()

    assert [row["name"] for row in shown["inferences"]] == ["zz", "fine"]
    fine = shown["inferences"][1]
    assert (fine["detail"], fine["requestsPerSecond"], fine["latencyP99Ms"]) == ("version 3", 13.0, 8.0)


async def test_page_is_read_only_and_locked_down(client: httpx.AsyncClient) -> None:
    page = await client.get("/")

    assert page.status_code == 200
    assert "ads/fine" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert (await client.post("/api/v1/overview")).status_code == 405


async def test_one_object_by_name_and_the_way_out_when_there_is_none(client: httpx.AsyncClient) -> None:
    assert (await client.get("/api/v1/inferences/ads/fine")).json()["metadata"]["name"] == "fine"
    missing = await client.get("/api/v1/inferences/ads/gone")
    unknown = await client.get("/api/v1/pods/ads/gone")

    assert (missing.status_code, missing.json()["detail"]) == (404, "no inferences named ads/gone")
    assert "there are inferences, modelaccesses, featurecomputes" in unknown.json()["detail"]

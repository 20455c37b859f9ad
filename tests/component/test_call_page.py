"""docs/how-to/call-a-model.md: its commands are typed against a real Triton behind a real Envoy, and its errors are the gateway's."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from builders.model_access import a_model_access, a_route
from builders.probe_model import publish
from builders.waiting import eventually
from documented.pages import ROOT, Block
from documented.tutorial import MismatchError, run, steps
from fixtures.agent import ModelPod, serves_version
from fixtures.envoy import Client, Gateway, Upstream, backend_of
from fixtures.pipeline import endpoint_of
from tidegate.routing.fleet import Backend, BackendKey, BackendKind

PAGE = ROOT / "docs" / "how-to" / "call-a-model.md"
INFER = "/v2/models/ctr/infer"
ROW = re.compile(r"^\| (\d{3}) \| `(\w+)` \| `(.+?)` \|", re.MULTILINE)
"""A row of the page's errors: the status, the code of gRPC, and the message, in which … stands for the rest."""


def _typed() -> list[Block]:
    return [block for block in steps(PAGE.read_text(), "call-a-model.md") if not block.not_run]


async def _type_page(gateway: Client, folder: Path) -> list[str]:
    environment = {
        "GATEWAY": gateway.address,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    return await asyncio.to_thread(run, _typed(), folder, environment, timeout_s=120)


@pytest.mark.triton
async def test_every_command_of_the_page_prints_what_it_promises(
    model_pod: ModelPod, gateway: Gateway, tmp_path: Path
) -> None:
    publish(model_pod.artefact, 1)
    model_pod.start_agent(model_pod.order())
    model_pod.triton.start()
    model_pod.wait_for("version 1 serves", serves_version(1))
    pods = Backend(BackendKey(BackendKind.INFERENCE, "ads", "ctr"), "ctr", (endpoint_of(model_pod.triton),))
    client = await gateway.start(a_model_access(), pods)

    printed = await _type_page(client, tmp_path)

    assert len(printed) == 3
    assert '"inputs":[{"name":"x","datatype":"FP32","shape":[-1,1]}]' in printed[1]
    wrong_name = await client.rest("POST", "/v2/models/din/infer", headers=dict(_header("ctr")), body="{}")
    assert wrong_name[:2] == (404, """{"error":"Request for unknown model: 'din' is not found"}""")
    await gateway.control_plane.push(a_model_access("other"), pods)
    with pytest.raises(MismatchError, match="No ModelAccess"):
        await _type_page(client, tmp_path)


async def test_the_errors_on_the_page_are_those_of_a_gateway(gateway: Gateway) -> None:
    model = await gateway.upstream("v1")
    fleet = (
        a_model_access("limited", protection={"rateLimit": {"requests": 1, "per": "1m"}}),
        a_model_access("capped", protection={"maxConcurrent": 1}, routes=[a_route(timeout="60s")]),
        a_model_access("slow", routes=[a_route(timeout="50ms")]),
        backend_of("ctr", model),
    )
    for_vips = a_route("vip", match={"headers": [{"name": "x-user-segment", "exact": "vip"}]})
    client = await gateway.start(a_model_access(routes=[for_vips]), *fleet)
    answers = [await _refusal(client, name) for name in ("missing", "ctr")]
    await gateway.control_plane.push(a_model_access(routes=[a_route("default", "asleep")]), *fleet)
    answers.append(await _refusal(client, "ctr"))
    answers.append(await _refuse_method(client))
    await client.infer(metadata=_header("limited"))
    answers.append(await _refusal(client, "limited"))
    model.open.clear()
    answers.append(await _refuse_third_request(client, model))
    model.open.clear()
    answers.append(await _refusal(client, "slow"))

    assert [_row_of(answer) for answer in answers] == [
        ("404", "NOT_FOUND", "No ModelAccess or FeatureCompute has this name: …"),
        ("404", "NOT_FOUND", "ModelAccess ads/ctr: no route matches the headers of this request, …"),
        ("503", "UNAVAILABLE", "ModelAccess ads/ctr: no target of route default has a ready endpoint; …"),
        ("404", "UNIMPLEMENTED", "This gateway passes inference, health and metadata only: …"),
        ("429", "RESOURCE_EXHAUSTED", "local_rate_limited"),
        ("503", "RESOURCE_EXHAUSTED", "upstream connect error … reset reason: overflow"),
        ("504", "DEADLINE_EXCEEDED", "upstream request timeout"),
    ]


@dataclass(frozen=True)
class Refusal:
    """How the gateway refuses one request: over REST the status and the body, over gRPC the code and the same message."""

    status: int
    body: str
    code: str

    def is_described_by(self, row: tuple[str, str, str]) -> bool:
        """Whether a row of the page is about this refusal."""
        start, _, end = row[2].partition("…")
        body = self.body.strip()
        return (
            row[:2] == (str(self.status), self.code)
            and body.startswith(start.strip())
            and body.endswith(end.strip())
        )


def _row_of(refusal: Refusal) -> tuple[str, ...] | None:
    """Return the page's row about a refusal; None if there is none."""
    rows = [row for row in ROW.findall(PAGE.read_text()) if refusal.is_described_by(row)]
    return rows[0] if rows else None


async def _refuse_third_request(client: Client, model: Upstream) -> Refusal:
    """Return what the gateway answers beside one request of each protocol, which are all that `capped` lets through."""
    before = model.inferences
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(client.infer(metadata=_header("capped")))
        tasks.create_task(client.rest("POST", INFER, headers=dict(_header("capped"))))

        async def both_arrived() -> bool:
            return model.inferences == before + 2

        await eventually(both_arrived, "the model has both requests")
        refused = await _refusal(client, "capped")
        model.open.set()
    return refused


def _header(name: str) -> tuple[tuple[str, str], ...]:
    return (("x-tidegate-access", f"ads/{name}"),)


async def _refusal(client: Client, name: str) -> Refusal:
    status, body, _ = await client.rest("POST", INFER, headers=dict(_header(name)))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.infer(metadata=_header(name))
    assert refused.value.details() == body
    return Refusal(status, body, refused.value.code().name)


async def _refuse_method(client: Client) -> Refusal:
    status, body, _ = await client.rest("POST", "/v2/repository/index", headers=dict(_header("ctr")))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.stub().RepositoryIndex(service_pb2.RepositoryIndexRequest(), metadata=_header("ctr"))
    return Refusal(status, body, refused.value.code().name)

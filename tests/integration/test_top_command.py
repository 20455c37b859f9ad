"""`tidegate top` against the real API server and a real Envoy that counts real requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from builders.inference import inference_body
from builders.model_access import a_model_access, a_route, model_access_body
from builders.waiting import LONGEST_S, wait_until
from fixtures.control_plane import Kubectl, a_namespace
from fixtures.envoy import Client, Gateway, backend_of
from tidegate.cli.leader_input import fetch_leader_input
from tidegate.kube.client import KubeClient
from tidegate.planning.access.value_classes import RouteDemands
from tidegate.reports.orders import TopOrder
from tidegate.services import traffic

pytestmark = pytest.mark.usefixtures("crds")


@pytest.fixture
def models(kubectl: Kubectl, namespace: str) -> str:
    """ctr with two ready replicas, and a ModelAccess that leads to it; the namespace."""
    body = inference_body("ctr", value={"perRequest": "3"}, slo={"latencyP99": "10s"}, replicas=2)
    access = model_access_body("ctr", routes=[a_route("all", "ctr")])
    for each in (body, access, inference_body("idle")):
        kubectl.apply({**each, "metadata": {"name": each["metadata"]["name"]}}, namespace=namespace)
    patch = json.dumps({"status": {"readyReplicas": 2}})
    kubectl("patch", "inference", "ctr", "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)
    return namespace


async def top(kubeconfig: Path, *arguments: str) -> Mapping[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tidegate", "top", *arguments, "-o", "json", "--kubeconfig", str(kubeconfig)),
        "--system-namespace=tidegate-system",  # other tests leave installations behind
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complained = await asyncio.wait_for(process.communicate(), 90)
    assert process.returncode == 0, complained.decode()
    report: Mapping[str, Any] = json.loads(said)
    return report


async def asking(
    client: Client, namespace: str, question: Callable[[], Awaitable[Mapping[str, Any]]]
) -> Mapping[str, Any]:
    """The answer to a question that is asked while requests are sent."""

    async def send() -> None:
        while True:
            await client.infer(metadata=(("x-tidegate-access", f"{namespace}/ctr"),))
            await asyncio.sleep(0.01)

    sending = asyncio.create_task(send())
    try:
        return await question()
    finally:
        sending.cancel()
        await asyncio.wait({sending})


async def test_requests_latency_and_value_are_what_the_gateway_counted(
    models: str, kubeconfig: Path, gateway: Gateway
) -> None:
    model = await gateway.upstream("v1")
    access = a_model_access("ctr", models, routes=[a_route("all", "ctr")])
    client = await gateway.start(access, backend_of("ctr", model, namespace=models))
    before = model.inferences
    said = await asking(
        client,
        models,
        lambda: top(
            kubeconfig, "inferences", "-n", models, "--window", "2", "--gateway", gateway.envoy.admin
        ),
    )
    sent = model.inferences - before
    found = {each["inference"]: each for each in said["items"]}
    ctr = found[f"{models}/ctr"]
    assert said["items"][0] is ctr
    assert 0 < ctr["requestsPerSecond"] * 2 <= sent
    assert ctr["valuePerSecond"] == pytest.approx(3 * ctr["servedPerSecond"], abs=0.01)
    assert 0 < ctr["latencyP99Ms"] < 10_000
    assert found[f"{models}/idle"]["requestsPerSecond"] is None


async def test_a_target_of_another_namespace_takes_its_part_of_the_requests(
    models: str, kubectl: Kubectl, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SampledError(Exception):
        """Ends the command where it begins to sample gateways, which are not what is tried."""

    async def sample(
        client: KubeClient, sampling: traffic.TopOptions, routes: RouteDemands, pools: object
    ) -> None:
        raise SampledError(routes)

    monkeypatch.setattr(traffic, "_sample_traffic", sample)

    async def read_parts() -> Mapping[str, float]:
        options = traffic.TopOptions(fetch_leader_input, window_s=0.1)
        with pytest.raises(SampledError) as sampled:
            await traffic.read_top_inferences(client, models, options, TopOrder.REQUESTS)
        parts = sampled.value.args[0][f"access/{models}/both/all"].by_inference
        return {str(key): part for key, part in parts.items()}

    with a_namespace(kubectl, "shop") as shop:
        kubectl.apply({**inference_body("v4"), "metadata": {"name": "v4"}}, namespace=shop)
        targets = [{"inference": "ctr", "weight": 50}, {"inference": f"{shop}/v4", "weight": 50}]
        access = model_access_body("both", routes=[a_route("all", targets=targets)])
        kubectl.apply({**access, "metadata": {"name": "both"}}, namespace=models)
        assert await read_parts() == {f"{models}/ctr": 1.0}
        kubectl("annotate", "inference", "v4", "-n", shop, f"tidegate.io/shared-with={models}")
        assert await read_parts() == {f"{models}/ctr": 0.5, f"{shop}/v4": 0.5}


def test_keys_on_a_terminal_reach_the_table(models: str, kubeconfig: Path) -> None:
    ours, theirs = pty.openpty()
    arguments = ("inferences", "-n", models, "--gateway", "127.0.0.1:1", "--system-namespace=tidegate-system")
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "top", *arguments, "-w", "--kubeconfig", str(kubeconfig)],
        stdin=theirs,
        stdout=theirs,
        env={**os.environ, "COLUMNS": "160", "LINES": "20", "TERM": "xterm"},
    )
    os.set_blocking(ours, False)
    text = ""

    def has(pattern: str) -> bool:
        nonlocal text
        with contextlib.suppress(BlockingIOError):
            text += os.read(ours, 65_536).decode()
        return re.search(pattern, text, re.DOTALL) is not None

    try:
        wait_until(lambda: has(f"by requests.*{models}/ctr"), "the table", evidence=lambda: text)
        os.write(ours, b"nw")
        wait_until(lambda: has("by name.*STATE"), "the keys in the table", evidence=lambda: text)
        os.write(ours, b"q")
        assert process.wait(LONGEST_S) == 0
    finally:
        process.kill()
        process.wait(LONGEST_S)
        os.close(ours)
        os.close(theirs)

"""A ramp and a load test against a real Triton: what they measure is what the server counted, and what they cannot they say."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from builders.http_call import read_page
from builders.inference import inference_body
from builders.loopback import kubeconfig_of, on_loopback
from builders.port_forward import carried_to
from builders.probe_model import publish
from builders.waiting import at_rest
from fixtures.agent import ModelPod
from fixtures.grafana import every_query
from tidegate.api.meta import ObjectKey
from tidegate.errors import ApiUnavailableError, PermanentError
from tidegate.planning.diagnosis.calibration import RandomInputs
from tidegate.reports.calibration import CalibrationReport, ReplicaTarget
from tidegate.services.calibration import Ramp, RampLimits
from tidegate_dataplane.contract import AgentPhase
from tidegate_localcluster.ports import ReservedPort

pytestmark = [pytest.mark.triton]

SHORT = RampLimits(max_concurrency=4, step_s=1.0, total_s=20.0)
KEY = ObjectKey("ads", "ctr")


@pytest.fixture
def pod(shared_pod: ModelPod, request: pytest.FixtureRequest) -> ModelPod:
    """One that serves a probe model of this test's own."""
    shared_pod.model = request.node.name.replace("_", "-")[:40]
    publish(shared_pod.artefact, 1)
    shared_pod.put(shared_pod.order())
    shared_pod.wait_for(
        "version 1 serves", lambda report: report.phase is AgentPhase.READY and report.serving == 1
    )
    return shared_pod


def replica_of(pod: ModelPod, slo_s: float | None) -> ReplicaTarget:
    return ReplicaTarget(KEY, pod.model, "ctr-1", pod.triton.grpc, slo_s)


def counted(pod: ModelPod) -> int:
    """Requests that Triton itself answered."""
    with triton_grpc.InferenceServerClient(pod.triton.grpc) as client:
        statistics = client.get_inference_statistics(pod.model, as_json=True)
        return sum(int(one.get("inference_count", 0)) for one in statistics["model_stats"])


def a_ramp() -> Ramp:
    return Ramp(SHORT, RandomInputs(), lambda _: None)


async def measured(pod: ModelPod, slo_s: float | None) -> CalibrationReport:
    return await a_ramp().measure_replica(replica_of(pod, slo_s))


async def test_what_is_measured_is_what_the_server_answered(pod: ModelPod) -> None:
    before = counted(pod)
    found = await measured(pod, slo_s=30.0)
    assert [one.concurrency for one in found.measured][:3] == [1, 2, 4]
    assert all(not one.errors for one in found.measured)
    # A fifth of each second warms up, and is counted by the server alone.
    asked = sum(one.requests_per_second * 0.8 * SHORT.step_s for one in found.measured)
    assert asked <= counted(pod) - before <= asked * 2 + 20
    best = found.requests_per_second
    assert best == max(one.requests_per_second for one in found.measured)
    assert list(found.render_lines(wide=False))[-1] == (
        f'kubectl patch inference ctr -n ads --type=merge -p \'{{"spec": {{"capacity": {{"requestsPerSecond": "{best}"}}}}}}\''
    )
    assert found.to_json()["requestsPerSecond"] == best


async def test_an_slo_that_nobody_can_keep_gives_no_figure_and_ends_at_once(pod: ModelPod) -> None:
    found = await measured(pod, slo_s=1e-5)
    assert [one.concurrency for one in found.measured] == [1]
    assert found.to_json()["requestsPerSecond"] is None
    assert (
        "no request was answered within 0.01 ms, even one at a time"
        in list(found.render_lines(wide=False))[-1]
    )


async def test_a_model_that_is_not_there_and_a_server_that_is_not_there_are_told_apart(pod: ModelPod) -> None:
    with pytest.raises(PermanentError, match="unknown model"):
        await a_ramp().measure_replica(
            ReplicaTarget(ObjectKey("ads", "x"), "absent", "x-1", pod.triton.grpc, None)
        )
    with ReservedPort("127.0.0.1") as nobody:
        away = ReplicaTarget(ObjectKey("ads", "x"), pod.model, "x-1", f"127.0.0.1:{nobody.number}", None)
        with pytest.raises(ApiUnavailableError, match="UNAVAILABLE"):
            await a_ramp().measure_replica(away)


def shown(port: int) -> Mapping[str, set[str]]:
    """Each metric of Triton's page, and the labels of its series."""
    page = read_page(f"http://127.0.0.1:{port}/metrics")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            # The parser gives counters the suffix that Triton leaves out.
            found.setdefault(sample.name.removesuffix("_total"), set()).update(sample.labels)
    return found


async def test_triton_shows_what_the_dashboards_ask_for_by_model(pod: ModelPod) -> None:
    await measured(pod, slo_s=1e-5)
    assert pod.triton.metrics_port is not None
    page = await asyncio.to_thread(shown, pod.triton.metrics_port)
    asked = {name for each in every_query() for name in re.findall(r"nv_inference_\w+", each.expression)}
    assert len(asked) == 9
    assert {name for name in asked if not page.get(name, set()) >= {"model", "version"}} == set()
    assert "reason" in page["nv_inference_request_failure"]


# The whole command, through an API server


def a_ready_pod(name: str, *, ready: bool = True) -> dict[str, Any]:
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return {
        "metadata": {"name": name, "namespace": "ads", "uid": name},
        "spec": {"containers": []},
        "status": status,
    }


@asynccontextmanager
async def an_api_server(
    folder: Path, model: str, target: str, *, ready: bool = True, pods: int = 1
) -> AsyncIterator[Path]:
    """Knows one Inference and its pods, and carries connections to their port 8001 to `target`; gives its kubeconfig."""
    body = inference_body("ctr", model={"name": model}, slo={"latencyP99": "30s"})

    async def inference(request: web.Request) -> web.Response:
        if request.match_info["name"] != "ctr":
            return web.json_response({"reason": "NotFound", "code": 404, "kind": "Status"}, status=404)
        return web.json_response(body)

    async def list_pods(request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "tidegate.io/inference=ctr"
        items = [a_ready_pod("ctr-0", ready=False)]
        items += [a_ready_pod(f"ctr-{number + 1}", ready=ready) for number in range(pods)]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    application = web.Application()
    application.router.add_get("/apis/tidegate.io/v1alpha1/namespaces/ads/inferences/{name}", inference)
    application.router.add_get("/api/v1/namespaces/ads/pods", list_pods)
    for number in range(pods):
        path = f"/api/v1/namespaces/ads/pods/ctr-{number + 1}/portforward"
        application.router.add_get(path, carried_to(target, 8001))
    async with on_loopback(application) as address:
        yield kubeconfig_of(folder, address, token="s3cret")


async def command(kubeconfig: Path, *arguments: str, name: str = "calibrate") -> tuple[int, str, str]:
    """Exit status and what `tidegate <name>` wrote."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidegate", name, *arguments, "--kubeconfig", str(kubeconfig),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, complained = await asyncio.wait_for(process.communicate(), 90)
    return process.returncode or 0, said.decode(), complained.decode()


async def test_the_command_measures_a_ready_replica_through_the_api_server(
    pod: ModelPod, tmp_path: Path
) -> None:
    before = counted(pod)
    bounds = ("--max-concurrency=2", "--step-seconds=1", "--output=json")
    async with an_api_server(tmp_path, pod.model, pod.triton.grpc) as kubeconfig:
        status, said, complained = await command(kubeconfig, "ads/ctr", *bounds)
    assert status == 0, complained
    assert "CONCURRENCY" in complained  # progress is not mixed into what a program reads
    written = json.loads(said)
    assert (written["replica"], written["sloMs"]) == ("ctr-1", 30_000)
    assert [one["concurrency"] for one in written["measured"]] == [1, 2]
    assert counted(pod) - before >= written["requestsPerSecond"] * 0.8


async def test_replicas_on_one_machine_are_measured_at_the_same_time(pod: ModelPod, tmp_path: Path) -> None:
    """Two that are one server: together they answer about as much as one, and no more than it counted."""
    before = counted(pod)
    bounds = ("--max-concurrency=2", "--step-seconds=1", "--output=json", "--together")
    async with an_api_server(tmp_path, pod.model, pod.triton.grpc, pods=2) as kubeconfig:
        status, said, complained = await command(kubeconfig, "ads/ctr", *bounds)
    assert status == 0, complained
    written = json.loads(said)
    if written["note"]:
        assert (written["together"], "its own processor is busy" in written["note"]) == ([], True)
        return
    [both] = written["together"]
    assert (both["replicas"], both["concurrency"]) == (2, written["concurrency"])
    asked = sum(step["requestsPerSecond"] for step in (*written["measured"], both)) * 0.8
    assert asked * 0.95 <= counted(pod) - before <= asked * 2 + 20


async def test_one_replica_cannot_be_measured_together(pod: ModelPod, tmp_path: Path) -> None:
    async with an_api_server(tmp_path, pod.model, pod.triton.grpc) as kubeconfig:
        status, _, complained = await command(kubeconfig, "ads/ctr", "--together")
        assert (status, "Inference ads/ctr has 1 ready replica, and --together takes 2" in complained) == (
            3,
            True,
        )
        status, _, complained = await command(kubeconfig, "ads/ctr", "--together", "--pod=ctr-1")
        assert (status, "--together" in complained) == (2, True)
    assert counted(pod) == 0


@pytest.mark.slow("loads a Triton for seconds")
async def test_the_command_says_what_is_missing(pod: ModelPod, tmp_path: Path) -> None:
    async with an_api_server(tmp_path, pod.model, pod.triton.grpc, ready=False) as kubeconfig:
        status, _, complained = await command(kubeconfig, "ads/ctr")
        assert (status, "none of 2 pods with the labels tidegate.io/inference=ctr" in complained) == (3, True)
        status, _, complained = await command(kubeconfig, "ads/cvr")
        assert (status, 'Inference "cvr" not found in namespace "ads"' in complained) == (3, True)
        status, _, complained = await command(kubeconfig, "ads/ctr", "--slo=soon")
        assert (status, "soon" in complained) == (2, True)


@pytest.mark.slow("loads a Triton for seconds")
async def test_a_load_test_counts_what_triton_counted(pod: ModelPod, tmp_path: Path) -> None:
    before = at_rest(lambda: counted(pod), what="what Triton has counted")
    asked = ("ads/ctr", "--for", "2s", "--concurrency", "3", "--errors", "0", "-o", "json")
    async with an_api_server(tmp_path, pod.model, pod.triton.grpc) as kubeconfig:
        status, said, complained = await command(kubeconfig, *asked, name="bench")
    assert (status, complained) == (0, "")
    report = json.loads(said)
    # One more was sent beforehand, to see that the model takes them.
    assert (
        at_rest(lambda: counted(pod), what="what Triton has counted") - before
        == report["sent"] + 1
        == report["answered"] + 1
    )
    assert report["server"]["inferences"] == report["answered"]
    assert report["way"] == "port forward to pod ctr-1"
    assert 0 < report["latencyP50Ms"] <= report["latencyP99Ms"]

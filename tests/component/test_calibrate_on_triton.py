"""A ramp against a real Triton: what it measures is what the server counted, and what it cannot measure it says."""

from __future__ import annotations

import pytest
import tritonclient.grpc as triton_grpc

from builders.probe_model import publish
from fixtures.agent import ModelPod
from tidegate.api.meta import ObjectKey
from tidegate.cli.calibrate import Calibration, Ramp, Replica, closing_lines, ramp_up
from tidegate.errors import ApiUnavailableError, PermanentError
from tidegate.planning.calibration import Inputs
from tidegate_dataplane.contract import Phase
from tidegate_localcluster.ports import HeldPort

pytestmark = [pytest.mark.triton, pytest.mark.timeout(180)]

SHORT = Ramp(most=4, step_s=1.0, total_s=20.0)
KEY = ObjectKey("ads", "ctr")


@pytest.fixture
def pod(shared_pod: ModelPod, request: pytest.FixtureRequest) -> ModelPod:
    """One that serves a probe model of this test's own."""
    shared_pod.model = request.node.name.replace("_", "-")[:40]
    publish(shared_pod.artefact, 1)
    shared_pod.put(shared_pod.order())
    shared_pod.wait_for(
        "version 1 serves", lambda report: report.phase is Phase.READY and report.serving == 1
    )
    return shared_pod


def replica_of(pod: ModelPod, slo_s: float | None) -> Replica:
    return Replica("ads/ctr", pod.model, "ctr-1", pod.triton.grpc, slo_s)


def counted(pod: ModelPod) -> int:
    """Requests that Triton itself answered."""
    with triton_grpc.InferenceServerClient(pod.triton.grpc) as client:
        statistics = client.get_inference_statistics(pod.model, as_json=True)
        return sum(int(one.get("inference_count", 0)) for one in statistics["model_stats"])


async def measured(pod: ModelPod, slo_s: float | None) -> Calibration:
    return await ramp_up(replica_of(pod, slo_s), SHORT, Inputs(), lambda _: None)


async def test_what_is_measured_is_what_the_server_answered(pod: ModelPod) -> None:
    before = counted(pod)
    found = await measured(pod, slo_s=30.0)
    assert [one.concurrency for one in found.measured][:3] == [1, 2, 4]
    assert all(not one.errors for one in found.measured)
    # A fifth of each second warms up, and is counted by the server alone.
    asked = sum(one.requests_per_s * 0.8 * SHORT.step_s for one in found.measured)
    assert asked <= counted(pod) - before <= asked * 2 + 20
    best = found.best
    assert best is not None
    assert best.requests_per_s == max(one.requests_per_s for one in found.measured)
    assert closing_lines(found, KEY)[-1] == (
        'kubectl patch inference ctr -n ads --type=merge -p \'{"spec": {"capacity": '
        f'{{"requestsPerSecond": "{best.requests_per_s:.1f}"}}}}}}\''
    )
    assert found.serialised()["requestsPerSecond"] == round(best.requests_per_s, 1)


async def test_an_slo_that_nobody_can_keep_gives_no_figure_and_ends_at_once(pod: ModelPod) -> None:
    found = await measured(pod, slo_s=1e-5)
    assert [one.concurrency for one in found.measured] == [1]
    assert found.serialised()["requestsPerSecond"] is None
    assert "no request was answered within 0.01 ms, even one at a time" in closing_lines(found, KEY)[-1]


async def test_a_model_that_is_not_there_and_a_server_that_is_not_there_are_told_apart(pod: ModelPod) -> None:
    with pytest.raises(PermanentError, match="unknown model"):
        await ramp_up(
            Replica("ads/x", "absent", "x-1", pod.triton.grpc, None), SHORT, Inputs(), lambda _: None
        )
    with HeldPort("127.0.0.1") as nobody:
        away = Replica("ads/x", pod.model, "x-1", f"127.0.0.1:{nobody.number}", None)
        with pytest.raises(ApiUnavailableError, match="UNAVAILABLE"):
            await ramp_up(away, SHORT, Inputs(), lambda _: None)

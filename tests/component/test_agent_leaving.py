"""A pod on its way out, with a real Triton: nobody is told to stop while requests still come."""

from __future__ import annotations

import signal

import pytest

from builders.load import load_on
from builders.probe_model import publish
from builders.waiting import LONGEST_S, stays, wait_until
from fixtures.agent import ModelPod

pytestmark = [pytest.mark.triton]
MANY = 500
QUIET_S = 4.0


def test_a_pod_that_leaves_is_not_drained_before_its_requests_end(model_pod: ModelPod) -> None:
    # Longer than the default: a busy machine keeps whoever sends the requests waiting.
    model_pod.settings["TIDEGATE_AGENT_DRAIN_QUIET_S"] = str(QUIET_S)
    # Nothing but the requests keeps the pod.
    model_pod.settings["TIDEGATE_AGENT_DRAIN_LEAST_S"] = "0"
    model_pod.settings["TIDEGATE_AGENT_DRAIN_LIMIT_S"] = str(LONGEST_S)
    publish(model_pod.artefact, 1)
    model_pod.start_agent(model_pod.order())
    model_pod.triton.start()
    model_pod.wait_for("version 1 serves", lambda report: report.serving == 1)
    drained = model_pod.folder / "run" / "drained"
    assert model_pod.process is not None

    with load_on(model_pod.triton.grpc, model_pod.model) as load:
        model_pod.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: model_pod.probe("/readyz") == 503, what="readiness goes first")
        sent = load.report().sent
        stays(drained.exists, "the sign that the pod is drained", for_s=QUIET_S + 1)
        load.wait_sent(sent + MANY)
        assert not drained.exists()
        assert model_pod.probe("/healthz") == 200
    assert load.report().problems == ()

    wait_until(drained.exists, what="the agent says that no more come")
    assert model_pod.report().serving == 1

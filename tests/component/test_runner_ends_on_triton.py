"""A model's process that ends in a real Triton: nobody but the agent says so."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from builders.metrics_page import metric
from builders.probe_model import publish
from builders.waiting import wait_until
from fixtures.agent import ModelPod
from tidegate_dataplane.agent.runners import RECONNECT_S
from tidegate_dataplane.contract import AgentPhase, RunnerEnd
from tidegate_dataplane.sampling.watchdog import LivenessFlag

pytestmark = [pytest.mark.triton]


@pytest.fixture
def pod(shared_pod: ModelPod, request: pytest.FixtureRequest) -> ModelPod:
    """Serves version 1 of a model of the test's own, in one process; an end before that is no longer told."""
    shared_pod.begin(request.node.name)
    for version in (1, 2):
        publish(shared_pod.artefact, version)
    shared_pod.put(shared_pod.order())
    _serves(shared_pod, 1)
    wait_until(lambda: len(shared_pod.triton.model_processes()) == 1, what="one process is left")
    shared_pod.wait_for("no end is told", lambda said: said.ended is None)
    return shared_pod


def _serves(pod: ModelPod, version: int) -> None:
    pod.wait_for(
        f"version {version} serves", lambda said: said.phase is AgentPhase.READY and said.serving == version
    )


def _ends(pod: ModelPod) -> float:
    return metric(pod.metrics(), "tidegate_agent_runner_ends_total", reason="other")


def _seconds_of(pod: ModelPod) -> float:
    """How long the agent runs."""
    assert pod.process is not None
    ticks = int(Path(f"/proc/{pod.process.pid}/stat").read_text().rpartition(")")[2].split()[19])
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return uptime_s - ticks / os.sysconf("SC_CLK_TCK")


def _ask(pod: ModelPod, x: float = 0.0) -> float | None:
    """A score; None when the server refused."""
    with triton_grpc.InferenceServerClient(pod.triton.grpc) as client:
        tensor = triton_grpc.InferInput("x", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.full((1, 1), x, dtype=np.float32))
        try:
            return float(client.infer(pod.model, [tensor], client_timeout=10).as_numpy("score")[0, 0])
        except triton_grpc.InferenceServerException:
            return None


def test_a_model_process_that_ends_rests_the_pod_and_is_reported(pod: ModelPod) -> None:
    pod.takes_requests()
    before = _ends(pod)
    (process,) = pod.triton.model_processes()
    os.kill(process, signal.SIGKILL)
    wait_until(lambda: pod.probe("/readyz") == 503, what="the pod takes no requests")
    # It is told for a quarter of a minute.
    said = pod.wait_for("the end is reported", lambda report: report.ended is not None)
    assert said.ended == RunnerEnd(version=1, killed_for_memory=False)

    # Triton calls the model ready all along, and refuses its requests until it is loaded anew.
    wait_until(lambda: _ask(pod) == 1000.0, what="the model answers again")
    pod.wait_for("version 1 serves again", lambda report: report.phase is AgentPhase.READY)
    assert _ends(pod) == before + 1
    pod.takes_requests()


def test_without_the_agent_a_model_whose_process_ended_answers_nobody_and_is_called_ready(
    pod: ModelPod,
) -> None:
    """What the agent is there for; should Triton learn to do it by itself, this says so."""
    pod.stop_agent()
    (process,) = pod.triton.model_processes()
    os.kill(process, signal.SIGKILL)

    assert [_ask(pod) for _ in range(3)] == [None] * 3
    with triton_grpc.InferenceServerClient(pod.triton.grpc) as client:
        assert client.is_model_ready(pod.model)
    pod.triton.kill()  # which would wait for the process that is gone until its exit times out


def test_a_process_that_ended_while_the_agent_was_away_is_missed_by_the_next_one(pod: ModelPod) -> None:
    pod.kill_agent()
    (process,) = pod.triton.model_processes()
    os.kill(process, signal.SIGKILL)
    pod.start_agent()

    wait_until(lambda: _ask(pod) == 1000.0, what="the model answers again")


def test_a_restarted_agent_loads_nothing_that_lives(pod: ModelPod) -> None:
    before = pod.triton.model_processes()
    pod.kill_agent()
    pod.start_agent()
    # Longer than a runner that is missing is waited for.
    wait_until(
        lambda: pod.event("runner_missing") is not None or _seconds_of(pod) > RECONNECT_S + 2,
        what="the agent has looked for runners",
    )

    assert pod.event("runner_missing") is None
    assert pod.triton.model_processes() == before
    pod.takes_requests()


def test_versions_that_come_and_go_are_no_ends(pod: ModelPod) -> None:
    before = _ends(pod)
    for version in (2, 1):
        pod.put(pod.order(version, keep_versions=1))
        _serves(pod, version)
        pod.takes_requests()

    assert pod.report().ended is None
    assert _ends(pod) == before


@pytest.mark.no_rerun("a wrong answer")
def test_a_model_process_that_is_stopped_for_a_while_answers_nobody_with_what_another_asked(
    pod: ModelPod,
) -> None:
    """The backend gives up on a request after a second, and would take its late answer for that to the next one."""
    (process,) = pod.triton.model_processes()
    with ThreadPoolExecutor(8) as callers:
        os.kill(process, signal.SIGSTOP)
        answers = {x: callers.submit(_ask, pod, x) for x in map(float, range(40))}
        wait_until(
            lambda: sum(answer.done() for answer in answers.values()) >= 3,
            what="some are given up",
        )
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)

    scores = {x: answer.result() for x, answer in answers.items()}
    assert {x: score for x, score in scores.items() if score not in (None, 1000.0 + x)} == {}
    assert not pod.triton.has_ended()  # which it does where it reads the late answer after that was freed
    wait_until(lambda: process not in pod.triton.model_processes(), what="another process runs it")
    wait_until(lambda: _ask(pod, 1.0) == 1001.0, what="the model answers again")


def test_the_flag_that_shows_that_a_model_process_lives_is_where_the_watchdog_looks(pod: ModelPod) -> None:
    (process,) = pod.triton.model_processes()
    sign, looks = LivenessFlag.from_process(process), itertools.count()

    def found() -> bool:
        if next(looks) % 4 == 0:
            assert _ask(pod, 2.0) == 1002.0  # for which the backend lowers it
        sign.raise_flag()
        return sign.is_confirmed

    wait_until(found, what="the flag is lowered and raised")

"""A real gateway before real Tritons: a spare with two models answers for the pod of either one that falls silent or ends."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from builders.load import ProbeClient, access_client
from builders.model_access import a_model_access, a_route
from builders.probe_model import publish
from builders.waiting import at_rest, wait_until
from fixtures.agent import ModelPod, serves_version
from fixtures.envoy import Envoy, Gateway
from fixtures.shared_pod import SharedPod, a_shared_pod
from fixtures.triton import RunningTriton, TritonFiles, a_triton
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint

pytestmark = [pytest.mark.triton]

DETECTED_S = 11.0
"""Up to 5 s until the first check after the first request, two of 1 s with pauses of 0.5 s, and 3 s of a client's patience."""


@pytest.fixture
def own_pod(triton_files: TritonFiles, tmp_path: Path) -> Iterator[ModelPod]:
    """The only pod of Inference ctr, which serves version 2."""
    folder = tmp_path / "own"
    folder.mkdir()
    with a_triton(triton_files, folder) as triton:
        pod = ModelPod(folder, triton)
        pod.start_agent()
        try:
            triton.start()
            publish(pod.artefact, 2)
            pod.put(pod.order(2))
            pod.wait_for("version 2 serves", serves_version(2))
            yield pod
        finally:
            pod.kill_agent()


@pytest.fixture
def spare(triton_files: TritonFiles, tmp_path: Path) -> Iterator[SharedPod]:
    """A spare with version 2 of ctr and version 5 of cvr."""
    folder = tmp_path / "spare"
    folder.mkdir()
    with a_shared_pod(triton_files, folder) as pod:
        pod.order(ctr=2, cvr=5)
        yield pod


def endpoint_of(triton: RunningTriton) -> Endpoint:
    return Endpoint("127.0.0.1", int(triton.grpc.rpartition(":")[2]), triton.http_port)


def a_backend(name: str, *pods: Endpoint) -> Backend:
    return Backend(BackendKey(BackendKind.INFERENCE, "ads", name), name, pods)


def ask_until_answered(client: ProbeClient) -> None:
    """Ask until a request is answered, within the time of the checks; others before it fail."""

    def is_answered() -> bool:
        try:
            return client.ask(3.0).version == "2"
        except InferenceServerException:
            return False

    wait_until(is_answered, what="the spare answers", timeout_s=DETECTED_S)


def wait_for_checks(envoy: Envoy, own: RunningTriton, *, fail: bool) -> None:
    """Wait until Envoy sends the pod nothing more, or again; a retry may reach the spare before, and the next request the pod."""
    port = own.grpc.rpartition(":")[2]

    def is_so() -> bool:
        with urllib.request.urlopen(f"http://{envoy.admin}/clusters", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        flags = [line for line in lines if f"127.0.0.1:{port}::health_flags::" in line]
        return bool(flags) and all(("failed_active_hc" in line) == fail for line in flags)

    wait_until(is_so, what=f"the checks of the pod {'fail' if fail else 'pass'}")


def lose_pod_twice(envoy: Envoy, own: RunningTriton, spare: SharedPod) -> None:
    """Stop the only pod of ctr, continue it, and end it; the spare answers while it is gone, and only then."""
    client = access_client(envoy.address, "ads/ctr", model="ctr")
    impatient = access_client(envoy.address, "ads/ctr", model="ctr", timeout_s=1.0)

    def count_at_spare() -> int:
        return at_rest(
            lambda: spare.count_requests("ctr"), what="requests that the spare has answered", for_s=1.0
        )

    for number in range(50):
        assert client.ask(float(number)).version == "2"
    assert count_at_spare() == 0
    assert own.process is not None

    losses: list[tuple[str, Callable[[], None]]] = [
        ("silent", lambda: os.killpg(own.process.pid, signal.SIGSTOP)),  # type: ignore[union-attr]
        ("ended", own.kill),
    ]
    for name, lose in losses:
        lose()
        ask_until_answered(impatient)
        wait_for_checks(envoy, own, fail=True)
        before = count_at_spare()
        for number in range(50):
            assert client.ask(float(number)).version == "2"
        answered = count_at_spare()
        assert answered == before + 50
        if name == "silent":
            os.killpg(own.process.pid, signal.SIGCONT)
            wait_for_checks(envoy, own, fail=False)

            def is_idle() -> bool:
                nonlocal answered
                before = answered
                try:
                    impatient.ask(1.0)
                except InferenceServerException:  # it continues with what it was asked before
                    return False
                answered = count_at_spare()
                return answered == before

            wait_until(is_idle, what="the pod answers again")

    # The other model of the spare was not disturbed.
    assert access_client(envoy.address, "ads/cvr", model="cvr").ask(7.0).version == "5"


async def test_a_spare_answers_for_the_only_pod_of_a_model_until_that_is_back(
    gateway: Gateway, own_pod: ModelPod, spare: SharedPod
) -> None:
    shared = endpoint_of(spare.pod.triton)
    accesses = [
        a_model_access(name, routes=[a_route(targets=[{"inference": name}])]) for name in ("ctr", "cvr")
    ]
    ctr = a_backend("ctr", endpoint_of(own_pod.triton)).with_spares([shared], 1)
    # All pods of cvr are gone already.
    cvr = a_backend("cvr").with_spares([shared], 1)
    await gateway.start(*accesses, ctr, cvr)
    await asyncio.to_thread(lose_pod_twice, gateway.envoy, own_pod.triton, spare)

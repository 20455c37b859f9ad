"""What an access does when its Tritons fail, hang or have too much to do; the counters of Tritons and gateways tell, beside each its control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from builders.waiting import wait_until
from fixtures.installed import Client, Space
from fixtures.standing import VERSIONS, Fleet, to
from tidegate_localcluster.demo.helm import NAMESPACE

FRAGILE, SLOW, QUICK = VERSIONS["fragile"], VERSIONS["slow"], VERSIONS["b"]
_LONG: Final = "100s"
_REFUSED: Final = "envoy_tidegate_refused"
_AT_DEADLINE: Final = "envoy_http_downstream_rq_max_duration_reached"


@pytest.fixture(scope="module")
def space(standing: Fleet) -> Space:
    return standing.space


def access(space: Space, name: str, *routes: Mapping[str, Any], **spec: Any) -> None:
    named = [{"name": f"r{number}", "timeout": "30s", **route} for number, route in enumerate(routes)]
    space.apply("ModelAccess", name, {"routes": named, **spec})
    space.ready(f"modelaccess/{name}")


def connection(space: Space, name: str, **headers: str) -> Client:
    gateway = space.installed.endpoints.gateway
    # Longer than any route's: the gateways decide what ends.
    return Client(gateway, f"{space.namespace}/{name}", headers, timeout_s=120.0)


def outcomes(space: Space, name: str, count: int = 10, **request: Any) -> Counter[str]:
    """One after the other, each on a connection of its own: those of all gateways."""
    seen: Counter[str] = Counter()
    for _ in range(count):
        client = connection(space, name)
        seen[client.outcome(**request)] += 1
        client.close()
    return seen


def gateways_counted(space: Space, metric: str, **labels: str) -> int:
    """The sum over all gateways of what has these labels, or labels that end so."""
    return int(
        sum(
            one.value
            for pod in space.installed.component("gateway")
            for one in space.installed.metrics(NAMESPACE, pod["metadata"]["name"], 9902, "stats/prometheus")
            if one.name == metric
            and all(one.labels.get(name, "").endswith(value) for name, value in labels.items())
        )
    )


# Retry


def test_a_retry_answers_for_a_triton_that_dies_and_nobody_else_is_answered(space: Space) -> None:
    access(space, "patient", to("slow", retry={"attempts": 2, "budgetPercent": 100}, timeout=_LONG))
    access(space, "impatient", to("slow", timeout=_LONG))

    def waiting(pod: Mapping[str, Any]) -> int:
        page = space.installed.metrics(space.namespace, pod["metadata"]["name"], 8002)
        return int(sum(one.value for one in page if one.name == "nv_inference_pending_request_count"))

    before = restarts(space)
    assert len(before) == 2
    doomed = space.pods("slow")[0]["metadata"]["uid"]
    server = space.installed.processes("--model-control-mode=explicit", [doomed])
    assert server
    with ThreadPoolExecutor(16) as pool:
        asked: dict[str, list[Future[str]]] = {
            name: [pool.submit(connection(space, name).outcome, x=30.0) for _ in range(8)]
            for name in ("patient", "impatient")
        }
        wait_until(lambda: all(waiting(pod) >= 3 for pod in space.pods("slow")), "both pods have requests")
        space.installed.end(server)
        seen = {name: Counter(one.result() for one in futures) for name, futures in asked.items()}
    assert seen["patient"] == {SLOW: 8}
    assert seen["impatient"][SLOW] < 8, seen
    # The next tests need it, and its Inference is Ready until the kubelet has seen what happened.
    wait_until(lambda: restarts(space)[doomed] > before[doomed], "the server is started again")
    wait_until(lambda: all(map(is_ready, space.pods("slow"))), "both pods are ready")


def restarts(space: Space) -> Mapping[str, int]:
    """Of the servers of `slow`, by the uid of their pods."""
    return {
        pod["metadata"]["uid"]: sum(one["restartCount"] for one in pod["status"]["containerStatuses"])
        for pod in space.pods("slow")
    }


def is_ready(pod: Mapping[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"]["conditions"])


# The end of an ejection


def test_pods_that_were_left_out_answer_again_when_their_time_is_over(space: Space) -> None:
    for name, time in (("soon", "2s"), ("late", "1h")):
        outlier = {"outlier": {"consecutiveFailures": 2, "ejectFor": time}}
        access(space, name, to("fragile", fallback={"inference": "b"}), protection=outlier)

        def left_out(name: str = name) -> bool:
            return outcomes(space, name, rows=2) == {QUICK: 10}

        if name == "late":
            wait_until(left_out, "every gateway leaves the pod out", timeout_s=90)
        else:
            wait_until(
                lambda: QUICK in outcomes(space, "soon", rows=2),
                "a gateway leaves the pod out",
                timeout_s=60,
            )
    wait_until(lambda: outcomes(space, "soon") == {FRAGILE: 10}, "the pod answers again", timeout_s=90)
    assert outcomes(space, "late") == {QUICK: 10}


# Too much to do


@dataclass
class Crowd:
    """24 callers on one connection, that come at the same time, of whom about half find a place; on one route of an access.

    The connection stays, and with it the one thread of a gateway that counts them: it looks at ten seconds.
    """

    space: Space
    access: str
    route: str = "rest"
    rounds: int = 0
    answered: int = 0

    def __post_init__(self) -> None:
        self._client = connection(self.space, self.access, **{"x-segment": self.route})

    def come(self) -> None:
        """Each calls four times."""
        with ThreadPoolExecutor(24) as pool:
            for _ in range(4):
                seen = Counter(pool.map(lambda _: self._client.outcome(x=2.0), range(24)))
                assert seen.keys() <= {SLOW, "RESOURCE_EXHAUSTED"}, seen
                self.answered += seen[SLOW]
                self.rounds += 1

    def leave(self) -> None:
        """Ends the connection."""
        self._client.close()

    def refused(self) -> int:
        """By admission control, before any target, as the gateways count."""
        route = f"{self.access}/{self.route}/grpc"
        return gateways_counted(self.space, _REFUSED, route=route, why="denied_by_admission_control")


def test_of_equal_overload_the_route_of_low_value_is_refused(space: Space) -> None:
    gold = {"name": "gold", "match": {"headers": [{"name": "x-segment", "exact": "gold"}]}, "value": "3"}
    routes = [to("slow", **gold), to("slow", name="rest", value="1")]
    protection = {"maxConcurrent": 10}
    access(space, "valued", *routes, protection={**protection, "admissionControl": {}})
    bare = [{key: value for key, value in route.items() if key != "value"} for route in routes]
    access(space, "valueless", *bare, protection=protection)

    before, low = space.counted("slow"), Crowd(space, "valued")

    def many_refused() -> bool:
        low.come()
        return low.refused() > 24

    wait_until(many_refused, "the route of low value is refused", timeout_s=120, evidence=lambda: low)
    low.leave()
    # What was refused never reached a Triton.
    space.counts_to("slow", before + low.answered)
    for other in (Crowd(space, "valued", "gold"), Crowd(space, "valueless")):
        while other.rounds < low.rounds:
            other.come()
        other.leave()
        assert other.refused() == 0, other


# Connections that are not made


def test_more_that_wait_for_a_connection_than_allowed_are_refused_at_once(space: Space) -> None:
    """A pod that no packet reaches, while its readiness still says that it is there."""
    access(space, "unwilling", to("b"), protection={"maxPending": 2})
    # Of its own, or it would share connections with other accesses, that are open already.
    access(space, "willing", to("b"), protection={"maxPending": 1000})
    (pod,) = space.pods("b")
    before = space.counted("b")

    def at_once(name: str) -> Counter[str]:
        client = connection(space, name)
        with ThreadPoolExecutor(12) as pool:
            seen = Counter(pool.map(lambda _: client.outcome(), range(12)))
        client.close()
        return seen

    with space.installed.unreachable(pod["status"]["podIP"]):
        # One connection leads to one gateway, of which each thread may let so many wait.
        seen = at_once("unwilling")
        assert seen.keys() == {"RESOURCE_EXHAUSTED", "UNAVAILABLE"}, seen
        assert seen["UNAVAILABLE"] <= 4
        assert at_once("willing") == {"UNAVAILABLE": 12}
    assert space.counted("b") == before
    wait_until(lambda: outcomes(space, "unwilling") == {QUICK: 10}, "the pod answers again", timeout_s=30)


# Deadlines, last: what the gateway has ended, a Triton may work on for a while.


def test_the_gateway_ends_a_request_at_the_deadline_of_its_client_where_it_is_told_to(space: Space) -> None:
    """The client here only says its deadline and does not keep it; Triton's own comes about as soon as the gateway's."""
    access(space, "strict", to("slow"), protection={"deadline": True})
    access(space, "lax", to("slow"))
    request = service_pb2.ModelInferRequest(model_name="probe", raw_input_contents=[np.float32(50).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    body = request.SerializeToString()

    def ended(name: str) -> int:
        before = gateways_counted(space, _AT_DEADLINE)
        for _ in range(3):
            answer = httpx.post(
                f"http://{space.installed.endpoints.gateway}/inference.GRPCInferenceService/ModelInfer",
                headers={
                    "content-type": "application/grpc",
                    "te": "trailers",
                    "grpc-timeout": "200m",
                    "x-tidegate-access": f"{space.namespace}/{name}",
                },
                content=b"\0" + len(body).to_bytes(4, "big") + body,
                timeout=60,
            )
            assert answer.headers.get("grpc-status", "") != "0"
        return gateways_counted(space, _AT_DEADLINE) - before

    wait_until(lambda: ended("strict") > 0, "the gateway ends requests", timeout_s=60)
    assert ended("lax") == 0
    # The next test that asks `slow` would wait for what is still being worked on.
    space.counted_at_rest("slow")

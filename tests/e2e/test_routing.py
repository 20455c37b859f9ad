"""Requests go where the ModelAccess says, by the Tritons' own counters; each field's edges are in tests/component, on an Envoy before test servers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pytest

from builders import probe_model
from builders.load import access_client
from builders.scenario import require_scenario
from builders.waiting import LIMIT_S, at_rest, wait_until
from fixtures.installed import Installed, Space, a_space

VERSIONS: Final = {"a": "1", "b": "2", "slow": "3", "fragile": "4"}
SLOW_ROUNDS: Final = 30_000
"""A fiftieth of a second and more for each whole unit of x."""
REQUESTS: Final = 16
"""Of each of ACCESSES, to two pods of which one dies: that it gets none of 16 happens once in sixty thousand runs."""
ACCESSES: Final = ("patient", "impatient")


@dataclass(frozen=True, slots=True)
class Fleet:
    """`a`, `b`, `slow` on two pods, and `fragile`, which fails for more than one row; each answers as its version of VERSIONS."""

    space: Space

    def access(self, name: str, *routes: Mapping[str, Any], **spec: Any) -> None:
        """Applies an access and waits until the gateways run it. Its routes wait for a busy machine, unless they say how long."""
        named = [
            {"name": f"r{number}", "timeout": f"{LIMIT_S:g}s", **route} for number, route in enumerate(routes)
        ]
        self.space.apply("ModelAccess", name, {"routes": named, **spec})
        self.space.ready(f"modelaccess/{name}")

    def outcome(self, access: str, *, x: float = 0.0, rows: int = 1, **headers: str) -> str:
        """The version that answered one request, or the status that refused it. Many slow ones at once wait for each other."""
        address, name = self.space.installed.endpoints.gateway, f"{self.space.namespace}/{access}"
        client = access_client(address, name, headers, timeout_s=60.0)
        try:
            return client.outcome(x, rows)
        finally:
            client.close()

    def outcomes(self, access: str, count: int, **request: Any) -> Counter[str]:
        """The same for many, one after the other."""
        return Counter(self.outcome(access, **request) for _ in range(count))

    @property
    def gateways(self) -> int:
        """How many share the requests."""
        return len(self.space.installed.component("gateway"))

    def counts(self, *inferences: str) -> tuple[int, ...]:
        """Requests that the Tritons have run."""
        return tuple(map(self.space.counted, inferences))

    def ran(self, before: Sequence[int], **requests: int) -> None:
        """Waits until so many have been run since `before`, and fails where more were."""
        for then, (inference, more) in zip(before, requests.items(), strict=True):
            self.space.counts_to(inference, then + more)


@pytest.fixture(scope="session")
def standing(installed: Installed) -> Iterator[Fleet]:
    """The Inferences, ready."""
    with a_space(installed, "e2e-standing") as space:
        space.publish("a", 1)
        space.publish("b", 2)
        probe_model.publish_slow(space.folder("slow"), 3, rounds=SLOW_ROUNDS)
        probe_model.publish_for_one_row(space.folder("fragile"), 4)
        for name, version in VERSIONS.items():
            space.inference(name, version=int(version), replicas=2 if name == "slow" else 1)
        space.ready(*(f"inference/{name}" for name in VERSIONS))
        yield Fleet(space)


def to(*names: str, **route: Any) -> dict[str, Any]:
    """A route to these Inferences in equal shares."""
    return {"targets": [{"inference": name} for name in names], **route}


CHI_SQUARE = 23.93
"""Critical value for one degree of freedom: a fair split is beyond it once in a million runs."""


def _distance(seen: tuple[int, int], share: float) -> float:
    """Pearson's chi-square of two counts against an expected share of the first."""
    total = sum(seen)
    wanted = (total * share, total * (1 - share))
    return sum((one - other) ** 2 / other for one, other in zip(seen, wanted, strict=True))


@pytest.mark.no_rerun("a lost request")
def test_weights_are_what_the_tritons_count_and_a_weight_of_zero_gets_nothing(standing: Fleet) -> None:
    weights = {"a": 80, "b": 20, "slow": 0}
    standing.access(
        "weighted",
        {"targets": [{"inference": name, "weight": weight} for name, weight in weights.items()]},
    )
    before = standing.counts(*weights)
    with standing.space.load(1, 2, access="weighted") as load:
        load.wait_sent(1000, timeout_s=100)
        report = load.finish()

    def seen() -> tuple[int, ...]:
        return tuple(now - then for now, then in zip(standing.counts(*weights), before, strict=True))

    assert report.problems == ()
    wait_until(lambda: sum(seen()) == report.sent, "all are counted", evidence=lambda: (report, seen()))
    a, b, none = seen()
    assert none == 0
    assert _distance((a, b), 0.8) < CHI_SQUARE, seen()
    # The measure can fail: the same counts are nowhere near an even split.
    assert _distance((a, b), 0.5) > CHI_SQUARE


def test_every_field_of_an_access_counts_beside_the_others(standing: Fleet) -> None:
    def on(header: str, **comparison: str) -> dict[str, Any]:
        return {"match": {"headers": [{"name": header, **comparison}]}}

    standing.access(
        "full",
        to("a", mirror=[{"inference": "b", "percent": 100}], **on("x-user-segment", exact="vip")),
        to("a", "b", sticky={"header": "x-user-id"}, **on("x-scene", prefix="home-")),
        to("slow", timeout="1s", **on("x-scene", regex="feed-[0-9]+")),
        to("fragile", fallback={"inference": "b"}),
        protection={"outlier": {"consecutiveFailures": 3, "ejectFor": "60s"}},
    )
    before = standing.counts("a", "b")
    vip = {"x-user-segment": "vip", "x-scene": "home-top"}  # the first route that fits
    assert standing.outcomes("full", 10, **vip) == {"1": 10}
    standing.ran(before, a=10, b=10)

    def users() -> list[str]:
        return [
            standing.outcome("full", **{"x-scene": "home-top", "x-user-id": f"user-{number}"})
            for number in range(20)
        ]

    once = users()
    assert set(once) == {"1", "2"}
    assert users() == once

    assert standing.outcome("full", x=100.0, **{"x-scene": "feed-17"}) == "DEADLINE_EXCEEDED"
    wait_until(lambda: standing.outcome("full", **{"x-scene": "feed-17"}) == "3", "a quick one is in time")
    assert standing.outcome("full", **{"x-scene": "feed-17b"}) == "4"  # the whole value has to fit
    # A pod that fails is left out, and the fallback answers.
    assert standing.outcome("full", rows=2) not in VERSIONS.values()
    wait_until(lambda: standing.outcome("full", rows=2) == "2", "the fallback answers")

    # Each gateway has a limit of its own, and requests go to either; what is refused reaches no Triton.
    standing.access("limited", to("a"), protection={"rateLimit": {"requests": 5, "per": "1m"}})
    before = standing.counts("a")
    seen = standing.outcomes("limited", 16)
    assert 5 <= seen["1"] <= 5 * standing.gateways
    assert seen["1"] + seen["RESOURCE_EXHAUSTED"] == 16
    standing.ran(before, a=seen["1"])


def test_rest_is_served_beside_grpc_and_model_control_is_not_reachable(standing: Fleet) -> None:
    host = f"{standing.space.namespace}.example.com"
    standing.access("hosted", to("a"), hosts=[host])
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [5.0]}]}

    answered = _post(standing, "/v2/models/probe/infer", body, {"host": host})
    assert answered["outputs"][0]["data"] == [1005.0]
    assert answered["model_version"] == VERSIONS["a"]
    by_header = {"x-tidegate-access": f"{standing.space.namespace}/hosted"}
    assert _post(standing, "/v2/models/probe/infer", body, by_header) == answered

    for path in (
        "/v2/repository/models/probe/unload",
        "/v2/repository/index",
        "/v2/systemsharedmemory/status",
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            _post(standing, path, {}, by_header)
        with caught.value as answer:
            assert answer.code in (403, 404), path
    assert standing.outcome("hosted") == VERSIONS["a"]


def _post(standing: Fleet, path: str, body: object, headers: Mapping[str, str]) -> Any:
    request = urllib.request.Request(
        f"http://{standing.space.installed.endpoints.gateway}{path}",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", **headers},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


# Last: one of the Tritons has ended.
def test_a_retry_answers_for_a_triton_that_dies_and_nobody_else_is_answered(standing: Fleet) -> None:
    space = standing.space
    patient = {"retry": {"attempts": 2, "budgetPercent": 100}, "timeout": "100s"}
    standing.access("patient", to("slow", **patient))
    standing.access("impatient", to("slow", timeout="100s"))

    def ask(access: str) -> str:
        # Longer than any route's: the gateways decide what ends.
        client = access_client(
            space.installed.endpoints.gateway, f"{space.namespace}/{access}", timeout_s=120.0
        )
        try:
            return client.outcome()
        finally:
            client.close()

    doomed, other = (pod["metadata"] for pod in space.pods("slow"))
    server = space.installed.processes("--model-control-mode=explicit", [doomed["uid"]])
    assert server

    def waiting_for_other() -> float:
        page = space.installed.metrics(space.namespace, other["name"], 8002)
        return sum(metric.value for metric in page if metric.name == "nv_inference_pending_request_count")

    with ThreadPoolExecutor(2 * REQUESTS) as pool, space.installed.paused(server):
        # All at once: the gateways choose a pod by chance, and on a busy machine they soon hear that one answers no probe.
        sent = [(access, pool.submit(ask, access)) for _ in range(REQUESTS) for access in ACCESSES]

        def unanswered() -> list[int]:
            return [sum(not request.done() for to, request in sent if to == access) for access in ACCESSES]

        def rest_is_with_doomed() -> bool:
            active = space.count_at_gateways("envoy_cluster_upstream_rq_active", "slow")
            return active == sum(unanswered()) and waiting_for_other() == 0

        wait_until(rest_is_with_doomed, "the other pod runs all that it got", evidence=unanswered)
        at_rest(lambda: sum(unanswered()), what="requests without an answer")
        waiting = unanswered()
        require_scenario(min(waiting) >= 1, f"the paused Triton has requests of each access: {waiting}")
        space.installed.end(server)
        seen = {
            access: Counter(request.result() for to, request in sent if to == access) for access in ACCESSES
        }
    assert seen["patient"] == {VERSIONS["slow"]: REQUESTS}
    assert seen["impatient"][VERSIONS["slow"]] < REQUESTS, seen


def test_an_access_by_price_refuses_what_its_pods_cannot_answer_lowest_value_first(standing: Fleet) -> None:
    space = standing.space
    space.publish("small", 5)
    space.inference("small", version=5)
    space.kubectl.run(
        "patch", "inference", "small", "-n", space.namespace, "--type=merge",
        "-p", json.dumps({"spec": {"capacity": {"requestsPerSecond": "2"}}}),
    )  # fmt: skip
    space.ready("inference/small")
    gold = {"match": {"headers": [{"name": "x-user-segment", "exact": "gold"}]}, "value": "5"}
    for mode in ("Local", "Priced"):
        protection = {"admissionControl": {"mode": mode}}
        standing.access(mode.lower(), to("small", **gold), to("small"), protection=protection)
    assert standing.outcomes("local", 100) == {"5": 100}

    def refused() -> int:
        """Of a hundred requests without a value, sent as fast as they are answered: many more than two in a second."""
        outcomes = standing.outcomes("priced", 100)
        assert set(outcomes) <= {"5", "RESOURCE_EXHAUSTED"}, outcomes
        return outcomes["RESOURCE_EXHAUSTED"]

    wait_until(lambda: refused() > 50, "most are refused", evidence=refused)
    assert standing.outcomes("priced", 2, **{"x-user-segment": "gold"}) == {"5": 2}
    # Local refuses after failures alone, and there are none.
    assert standing.outcomes("local", 100) == {"5": 100}
    wait_until(lambda: standing.outcome("priced") == "5", "the few requests that follow are answered")

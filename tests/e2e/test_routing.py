"""Requests go where the ModelAccess says, measured on the Tritons' own counters."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from builders.waiting import wait_until
from fixtures.installed import Space, refused
from fixtures.standing import VERSIONS, Fleet, to
from tidegate.api.reasons import Reason

CHI_SQUARE_0_001 = 10.83
"""Critical value for one degree of freedom: a fair split is beyond it once in a thousand runs."""


def _distance(seen: tuple[int, int], share: float) -> float:
    """Pearson's chi-square of two counts against an expected share of the first."""
    total = sum(seen)
    wanted = (total * share, total * (1 - share))
    return sum((one - other) ** 2 / other for one, other in zip(seen, wanted, strict=True))


def test_weights_are_what_the_tritons_count_and_a_weight_of_zero_gets_nothing(standing: Fleet) -> None:
    weights = {"a": 80, "b": 20, "slow": 0}
    standing.access(
        "weighted",
        {"targets": [{"inference": name, "weight": weight} for name, weight in weights.items()]},
    )
    before = standing.counts(*weights)
    with standing.space.load(1, 2, access="weighted", max_seconds=120) as load:
        load.wait_sent(2000, timeout_s=100)
        report = load.finish()

    def seen() -> tuple[int, ...]:
        return tuple(now - then for now, then in zip(standing.counts(*weights), before, strict=True))

    assert report.problems == ()
    wait_until(
        lambda: sum(seen()) == report.sent, "all are counted", timeout_s=30, evidence=lambda: (report, seen())
    )
    a, b, none = seen()
    assert none == 0
    assert _distance((a, b), 0.8) < CHI_SQUARE_0_001, seen()
    # The measure can fail: the same counts are nowhere near an even split.
    assert _distance((a, b), 0.5) > CHI_SQUARE_0_001


def test_rest_is_served_beside_grpc_and_model_control_is_not_reachable(standing: Fleet) -> None:
    host = f"{standing.space.namespace}.example.com"
    standing.access("hosted", to("a"), hosts=[host])
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [5.0]}]}

    answered = _post(standing, "/v2/models/probe/infer", body, host=host)
    assert answered["outputs"][0]["data"] == [1005.0]
    assert answered["model_version"] == VERSIONS["a"]
    by_header = {"x-tidegate-access": f"{standing.space.namespace}/hosted"}
    assert _post(standing, "/v2/models/probe/infer", body, headers=by_header) == answered

    for path in (
        "/v2/repository/models/probe/unload",
        "/v2/repository/index",
        "/v2/systemsharedmemory/status",
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            _post(standing, path, {}, headers=by_header)
        with caught.value as answer:
            assert answer.code in (403, 404), path
    assert standing.outcome("hosted") == VERSIONS["a"]


@pytest.mark.produces(Reason.TARGET_NOT_FOUND)
def test_missing_target_is_named_and_heals_when_it_appears(space: Space) -> None:
    space.publish("probe", 1)
    space.access(("probe", 100))
    wait_until(
        lambda: space.condition("modelaccess", "probe").get("reason") == "TargetNotFound",
        "Ready says TargetNotFound",
        evidence=lambda: space.status("modelaccess", "probe"),
    )
    # The xDS server learns of it by itself: until then the gateway knows no such access.
    wait_until(
        lambda: refused(space.ask).status() == "StatusCode.UNAVAILABLE",
        "the gateway has the route, and nothing behind it",
        evidence=lambda: refused(space.ask),
    )

    space.inference()
    space.ready()
    assert space.ask().version == "1"


def test_access_that_does_not_exist_is_refused_with_the_way_out(standing: Fleet) -> None:
    said = str(refused(lambda: standing.space.ask("nobody")))

    assert "NOT_FOUND" in said
    assert "send the header x-tidegate-access" in said


def _post(
    standing: Fleet,
    path: str,
    body: object,
    *,
    host: str | None = None,
    headers: dict[str, str] | None = None,
) -> dict[str, object] | dict[str, list[dict[str, object]]]:
    request = urllib.request.Request(
        f"http://{standing.space.installed.endpoints.gateway}{path}",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", **({"host": host} if host else {}), **(headers or {})},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)

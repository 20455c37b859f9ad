"""The allocator as part of the real controllers, with a real solver, on a real API server and scheduler.

No kubelet runs: a test says of pods that they are ready, and ends those on their way out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from builders.metrics_page import metric
from builders.waiting import wait_until
from fixtures.allocated import Allocated, looks_again
from fixtures.processes import Running
from tidegate.api.reasons import Reason
from tidegate.planning.allocator.decision import KEPT_DECISIONS
from tidegate.resources.names import POOL_LABEL

pytestmark = pytest.mark.usefixtures("controllers")


@pytest.mark.produces(Reason.RECOMMENDED, Reason.SIGNALS_STALE)
def test_recommendation_is_written_once_and_moves_nothing(allocated: Allocated, controllers: Running) -> None:
    allocated.model("batch", 0, 4, tier="offline")
    decision = allocated.decided(batch=4)
    assert decision["spec"]["mode"] == "RecommendOnly"
    [move] = decision["spec"]["moves"]
    assert (move["from"], move["to"], move["tier"]) == (0, 4, "offline")
    assert "batch +4" in move["why"]
    assert "would move 1 Inference" in allocated.pools.says(allocated.pool, Reason.RECOMMENDED, "Allocated")
    allocated.pools.says(allocated.pool, Reason.SIGNALS_STALE, "SignalsFresh")

    written = allocated.version("cpool", allocated.pool)
    looks_again(controllers, allocated.pool)
    assert [each["metadata"]["name"] for each in allocated.decisions()] == [decision["metadata"]["name"]]
    assert allocated.version("cpool", allocated.pool) == written
    inference = allocated.kubectl.json("get", "inference", "batch", "-n", allocated.pools.namespace)
    assert "allocation" not in inference["status"]
    assert allocated.ready("batch") == 0
    status = allocated.pools.status(allocated.pool)
    assert (status["mode"], status["lastDecision"]) == ("RecommendOnly", decision["metadata"]["name"])


@pytest.mark.produces(Reason.MOVING, Reason.NOTHING_TO_MOVE)
def test_what_is_decided_is_carried_out_and_no_pod_is_one_too_many(
    allocated: Allocated, controllers: Running
) -> None:
    allocated.mode("Auto")
    allocated.model("batch", 0, 4, tier="offline")
    first = allocated.decided(batch=4)
    allocated.pools.says(allocated.pool, Reason.MOVING, "Allocated")
    allocated.applied(first)
    allocated.pools.says(allocated.pool, Reason.NOTHING_TO_MOVE, "Allocated")

    # A real-time model takes what it needs at least; the batch's pod has to be gone first.
    allocated.model("ctr", 1, 3)
    allocated.settled(batch=3, ctr=1)
    allocated.override("sale", "ctr", floor={"replicas": 3})
    allocated.settled(batch=1, ctr=3)
    newest = allocated.decisions()[0]
    outcome = allocated.applied(newest)
    assert outcome["reclaimSeconds"] >= 0

    def real_time_slices() -> float:
        """As of the allocator's last look, which may have been before the last pod was ready."""
        labels = {"pool": allocated.pool, "tier": "realtime"}
        return metric(controllers.metrics(), "tidegate_pool_tier_slices", **labels)

    wait_until(lambda: real_time_slices() >= 3, what="the slices of real-time models are counted")
    page = controllers.metrics()
    assert 'tidegate_allocator_reclaim_seconds_count{tier="offline"}' in page
    assert (
        time.time() - metric(page, "tidegate_allocator_decided_timestamp_seconds", pool=allocated.pool) < 300
    )
    assert metric(page, "tidegate_allocator_interval_seconds", pool=allocated.pool) > 0
    assert (
        metric(
            page,
            "tidegate_override_created_timestamp_seconds",
            namespace=allocated.pools.namespace,
            name="ctr",
        )
        > 1e9
    )

    inference = allocated.kubectl.json("get", "inference", "ctr", "-n", allocated.pools.namespace)
    assert inference["spec"]["replicas"] == 1  # nobody writes what is the user's
    assert inference["status"]["allocation"]["replicas"] == 3
    assert inference["status"]["allocation"]["decision"] == newest["metadata"]["name"]

    def versions() -> list[str]:
        where = ("-n", allocated.pools.namespace)
        return [allocated.version("inference", name, *where) for name in ("ctr", "batch")]

    def quiet() -> bool:
        """Who writes an Inference's status for its pods may be a moment behind the allocator."""
        before = versions()
        looks_again(controllers, allocated.pool)
        return versions() == before

    wait_until(quiet, what="three looks write nothing")
    assert allocated.decisions()[0]["metadata"]["name"] == newest["metadata"]["name"]


@pytest.mark.produces(Reason.HISTORY_TOO_SHORT, Reason.FORECAST_INVALID)
def test_a_pool_says_what_it_cannot_forecast_yet(allocated: Allocated) -> None:
    allocated.model("batch", 0, 4, tier="offline")
    allocated.model("ctr", 1, 3)
    allocated.mode("Auto", forecast={})
    said = allocated.pools.says(allocated.pool, Reason.HISTORY_TOO_SHORT, "Forecasting")
    assert said == "1 of 1 Inferences has less than a day of history, so its present rate counts"
    policy = allocated.kubectl.json("get", "cpool", allocated.pool)["spec"]["policy"]
    assert policy["forecast"] == {"horizon": "5m", "quantile": "0.9", "timeZone": "UTC"}
    allocated.mode("Auto", forecast={"timeZone": "Mars/Olympus"})
    said = allocated.pools.says(allocated.pool, Reason.FORECAST_INVALID, "Forecasting")
    assert said.startswith("spec.policy.forecast.timeZone 'Mars/Olympus': there is no such time zone")
    allocated.mode("Auto")

    def conditions() -> set[str]:
        return {each["type"] for each in allocated.pools.status(allocated.pool)["conditions"]}

    wait_until(lambda: "Forecasting" not in conditions(), what="the pool says nothing of forecasts")
    assert "SignalsFresh" in conditions()


@pytest.mark.produces(Reason.EVENT_INVALID)
def test_a_pool_plans_for_an_event_and_names_one_that_cannot_be_read(allocated: Allocated) -> None:
    allocated.model("ctr", 1, 3)
    sale = {"name": "sale", "at": "2099-01-01T20:00:00Z", "duration": "2h", "factor": "3"}
    allocated.mode("Auto", events=[sale])
    said = allocated.pools.says(allocated.pool, Reason.EVENTS_PLANNED, "EventsPlanned")
    assert said == "no event is near; next is sale at 2099-01-01T20:00:00Z, 3 x"
    never = {"name": "never", "schedule": "0 25 * * *", "duration": "2h", "factor": "3"}
    allocated.mode("Auto", events=[sale, never])
    said = allocated.pools.says(allocated.pool, Reason.EVENT_INVALID, "EventsPlanned")
    assert said.startswith(
        "never is ignored until it is corrected: spec.policy.events[1].schedule '0 25 * * *' is no cron schedule"
    )
    # One that is running: the requests before it were not counted, so the model keeps what it has.
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    allocated.mode("Auto", events=[{**sale, "at": now}])
    said = allocated.pools.says(allocated.pool, Reason.EVENT_BASELINE_UNKNOWN, "EventsPlanned")
    assert "the demand before it is unknown for" in said
    allocated.mode("Auto")


@pytest.mark.produces(Reason.OVERRIDDEN, Reason.OVERRIDE_IN_FORCE, Reason.OVERRIDE_EXPIRED)
def test_an_override_counts_until_it_ends(allocated: Allocated) -> None:
    allocated.mode("Auto")
    allocated.model("ctr", 1, 3)
    allocated.settled(ctr=1)
    override = allocated.override("sale", "ctr", pin={"replicas": 3})
    allocated.pools.placed("ctr", Reason.OVERRIDDEN, "OverrideActive")
    _override_says(allocated, override, Reason.OVERRIDE_IN_FORCE)
    allocated.settled(ctr=3)
    assert "ComputeOverride" in allocated.decisions()[0]["spec"]["moves"][0]["why"]

    # Its end is set only now: it does not wait for a test on a busy machine.
    allocated.override("sale", "ctr", lasts=timedelta(seconds=3), pin={"replicas": 3})
    _override_says(allocated, override, Reason.OVERRIDE_EXPIRED)
    inference = allocated.kubectl.json("get", "inference", "ctr", "-n", allocated.pools.namespace)
    wait_until(
        lambda: "OverrideActive" not in _condition_types(allocated, "ctr"),
        what="nothing is said of the override any more",
    )
    assert inference["spec"]["scaling"] == {"minReplicas": 1, "maxReplicas": 3}


def _condition_types(allocated: Allocated, name: str) -> list[str]:
    found = allocated.kubectl.json("get", "inference", name, "-n", allocated.pools.namespace)
    return [each["type"] for each in found["status"]["conditions"]]


def _override_says(allocated: Allocated, name: str, reason: Reason) -> str:
    def ready() -> Mapping[str, Any]:
        conditions = (
            allocated.kubectl.json("get", "computeoverride", name).get("status", {}).get("conditions", ())
        )
        return next((each for each in conditions if each["type"] == "Ready"), {})

    wait_until(lambda: ready().get("reason") == reason, what=f"{name} says {reason}: {ready()}")
    return str(ready()["message"])


@pytest.mark.produces(Reason.OVERRIDE_WITHOUT_EFFECT)
def test_an_override_of_a_fixed_number_says_that_it_decides_nothing(allocated: Allocated) -> None:
    allocated.pools.inference("ctr", pool=allocated.pool)
    override = allocated.override("sale", "ctr", pin={"replicas": 3})
    assert "spec.replicas is fixed" in _override_says(allocated, override, Reason.OVERRIDE_WITHOUT_EFFECT)


@pytest.mark.produces(Reason.RULES_NOT_KEPT)
def test_floors_that_cannot_be_kept_are_named(allocated: Allocated) -> None:
    allocated.model("ctr", 5, 6)
    allocated.pools.says(allocated.pool, Reason.RULES_NOT_KEPT, "Allocated")
    [first, *_] = allocated.decisions()
    rules = [(each["rule"], each["subject"]) for each in first["spec"]["notKept"]]
    assert ("realtime floor", f"{allocated.pools.namespace}/ctr") in rules


def test_a_held_pool_moves_nothing_and_is_let_go(allocated: Allocated, controllers: Running) -> None:
    allocated.mode("Auto")
    allocated.override("freeze", hold=True)
    wait_until(
        lambda: allocated.pools.status(allocated.pool).get("mode") == "Hold",
        what="the pool says that it is held",
    )
    allocated.model("batch", 0, 4, tier="offline")
    looks_again(controllers, allocated.pool)
    allocated.kubelet()
    assert allocated.ready("batch") == 0
    allocated.kubectl("delete", "computeoverride", f"{allocated.pools.namespace}-freeze")
    allocated.settled(batch=4)


@pytest.mark.produces(Reason.FREEZE_UNREADABLE)
def test_nothing_moves_in_a_freeze_window_and_what_waited_moves_after_it(
    allocated: Allocated, controllers: Running
) -> None:
    always = {"schedule": "* * * * *", "duration": "2m"}
    allocated.mode("Auto", freeze=[always])
    allocated.model("batch", 0, 4, tier="offline")
    said = allocated.pools.says(allocated.pool, Reason.NOTHING_TO_MOVE, "Allocated")
    assert said.startswith("frozen until ")
    assert "by spec.policy.freeze[0]: every Inference keeps its slices" in said
    looks_again(controllers, allocated.pool)
    assert allocated.pools.status(allocated.pool)["mode"] == "Hold"

    # Nobody knows when this one begins: it holds as well, and says what to correct.
    allocated.mode("Auto", freeze=[{**always, "timeZone": "Mars/Olympus"}])
    said = allocated.pools.says(allocated.pool, Reason.FREEZE_UNREADABLE, "Allocated")
    assert "spec.policy.freeze[0].timeZone 'Mars/Olympus': there is no such time zone" in said
    allocated.kubelet()
    assert allocated.ready("batch") == 0

    # One that comes on the next 29th of February alone holds nothing now.
    allocated.mode("Auto", freeze=[{"schedule": "0 0 29 2 *", "duration": "1m"}])
    allocated.settled(batch=4)


def test_the_oldest_decisions_go_when_there_are_too_many(allocated: Allocated) -> None:
    """What was decided before is put there by the test: a pool decides hundreds of times in days."""
    allocated.model("batch", 0, 4, tier="offline")
    newest = allocated.decided(batch=4)
    labels = {POOL_LABEL: newest["metadata"]["labels"][POOL_LABEL]}
    before = datetime.now(UTC) - timedelta(days=1)
    names = [f"{allocated.pool}-before-{number:03}" for number in range(KEPT_DECISIONS)]
    allocated.kubectl.apply(
        *(
            {
                **{name: newest[name] for name in ("apiVersion", "kind")},
                "metadata": {"name": name, "labels": labels},
                "spec": {**newest["spec"], "at": _written(before + timedelta(minutes=number))},
            }
            for number, name in enumerate(names)
        )
    )
    allocated.model("batch", 0, 3, tier="offline")
    allocated.decided(batch=3)

    def there() -> list[str]:
        return [each["metadata"]["name"] for each in allocated.decisions()]

    wait_until(lambda: len(there()) == KEPT_DECISIONS, what="no more are kept")
    assert there()[1:] == [newest["metadata"]["name"], *reversed(names[2:])], "the newest stay"


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

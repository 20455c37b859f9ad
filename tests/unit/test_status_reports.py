"""What `tidegate status` says of the fleet and of one object, and how long it waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from builders.allocator import NOW, a_decision
from builders.compute_override import a_compute_override
from builders.compute_pool import a_compute_pool, pod_on
from builders.feature_compute import a_feature_compute
from builders.inference import an_inference
from builders.model_access import a_model_access, a_route
from builders.release import a_release, released
from builders.waiting import ends_in_time
from tidegate.api.inference import Inference
from tidegate.cli.object_names import ObjectName, parse_object_name
from tidegate.cli.status import wait_until_settled
from tidegate.errors import ApiUnavailableError, PermanentError
from tidegate.kube import kinds
from tidegate.main import app
from tidegate.reports.fleet import MAX_ATTENTION, FleetObjects, FleetReport, report_fleet
from tidegate.reports.state import ObjectReport, ObjectState
from tidegate.reports.status import MAX_EVENTS, MAX_PODS, RelatedObjects
from tidegate.reports.status_access import report_access
from tidegate.reports.status_feature import report_features
from tidegate.reports.status_inference import InferenceStatusReport, report_inference
from tidegate.reports.status_pool import PoolObjects, report_pool

EARLIER = "2026-01-01T11:00:00Z"


def conditions(*said: tuple[str, str, str, str]) -> dict[str, Any]:
    """A status about the newest spec with these conditions: type, status, reason, message."""
    return {
        "observedGeneration": 1,
        "conditions": [
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": EARLIER,
            }
            for kind, status, reason, message in said
        ],
    }


READY = conditions(
    ("Ready", "True", "AllReplicasReady", "1 of 1 replicas is ready"),
    ("Reconciling", "False", "Reconciled", ""),
    ("Stalled", "False", "Reconciled", ""),
)
STALLED = conditions(
    ("Ready", "False", "PoolNotFound", "there is no ComputePool gold"),
    ("Reconciling", "False", "Reconciled", ""),
    ("Stalled", "True", "PoolNotFound", "there is no ComputePool gold"),
)
LOADING = conditions(
    ("Ready", "False", "Loading", "0 of 1 replicas are ready"),
    ("Reconciling", "True", "Loading", "0 of 1 replicas are ready"),
    ("Stalled", "False", "Reconciled", ""),
)


def state_of(status: dict[str, Any], **metadata: Any) -> ObjectState:
    return ObjectReport.from_object(an_inference(status=status, metadata=metadata)).state


@pytest.mark.parametrize(
    ("status", "metadata", "state"),
    [
        (READY, {}, ObjectState.READY),
        (STALLED, {}, ObjectState.STALLED),
        (LOADING, {}, ObjectState.PROGRESSING),
        ({}, {}, ObjectState.PROGRESSING),
        (READY, {"generation": 2}, ObjectState.PROGRESSING),
        (STALLED, {"generation": 2}, ObjectState.PROGRESSING),
        (READY, {"deletionTimestamp": EARLIER}, ObjectState.DELETING),
        (conditions(("Ready", "False", "ImagePull", "no such image")), {}, ObjectState.NOT_READY),
        (conditions(("Ready", "False", "OfANewerVersion", "?")), {}, ObjectState.NOT_READY),
        (
            conditions(
                ("Ready", "True", "AllReplicasReady", ""), ("SamplesLogged", "False", "SinkRefused", "403")
            ),
            {},
            ObjectState.DEGRADED,
        ),
        (
            conditions(("Ready", "True", "AllReplicasReady", ""), ("Complete", "False", "Queued", "waits")),
            {},
            ObjectState.READY,
        ),
    ],
)
def test_conditions_together_are_one_state(
    status: dict[str, Any], metadata: dict[str, Any], state: ObjectState
) -> None:
    assert state_of(status, **metadata) is state


def test_a_release_under_way_is_as_it_should_be_and_one_that_was_taken_back_is_not() -> None:
    def with_ready(phase: str, *more: tuple[str, str, str, str]) -> ObjectReport:
        access = released(a_release(steps=[10, 100]), phase=phase)
        ready = ("Ready", "True", "Programmed", "1 of 1 proxies run it")
        said = access.status.model_validate(conditions(ready, *more))
        status = access.status.model_copy(
            update={"conditions": said.conditions, "observed_generation": access.metadata.generation}
        )
        return ObjectReport.from_object(access.model_copy(update={"status": status}))

    assert with_ready("Progressing").state is ObjectState.RELEASING
    assert with_ready("Promoted").state is ObjectState.READY
    back = with_ready("RolledBack", ("RolledBack", "True", "CheckFailed", "errors of v4: 9 %"))
    assert (back.state, back.reason) == (ObjectState.DEGRADED, "CheckFailed")
    assert ObjectState.RELEASING.healthy
    assert not ObjectState.DEGRADED.healthy


# the fleet


def a_fleet(**more: Any) -> FleetObjects:
    return FleetObjects(
        inferences=[
            an_inference("ctr", status=READY),
            an_inference("cvr", status=LOADING),
            an_inference("astray", status=STALLED),
        ],
        accesses=[a_model_access("home", status=READY)],
        pools=[
            a_compute_pool(
                policy={"mode": "Auto"},
                status={
                    **READY,
                    "nodes": 2,
                    "slices": {"total": 8, "healthy": 8, "free": 3},
                    "tiers": [{"name": "realtime", "slices": 4}, {"name": "offline", "slices": 1}],
                },
            )
        ],
        overrides=[
            a_compute_override("sale", pin={"replicas": 3}),
            a_compute_override(
                "stop", target={"kind": "ComputePool", "namespace": None, "name": "cpu-a"}, hold=True
            ),
            a_compute_override("over", hold=True, expiresAt="2025-12-31T00:00:00Z"),
        ],
        decisions=[a_decision(("ctr", 1, 3))],
        versions={"tidegate-system/tidegate-web": "0.1.0"},
        **more,
    )


def test_the_fleet_is_on_one_screen_with_the_worst_first() -> None:
    report = report_fleet(a_fleet(skipped=["featurecomputes: no right to them"]), NOW, "0.1.0", None)
    text = "\n".join(report.render_lines(wide=False))
    rows = [line.split() for line in text.splitlines()]
    assert "tidegate 0.1.0, control plane 0.1.0; all namespaces" in text
    assert ["Inference", "3", "1", "1", "1"] in rows
    assert [each.name for each in report.attention] == ["ads/astray", "ads/cvr"]
    assert text.index("Stalled") < text.index("Progressing  ")
    assert ["cpu-a", "Auto", "2", "8", "8", "3", "4", "0", "1"] in rows
    assert "decided    cpu-a-1 at 2026-01-01T12:00:00Z: 1 moves, on its way" in text
    assert text.count("ComputeOverride stop") == 1
    assert "ComputeOverride sale pins 3 replicas" in text
    assert "ComputeOverride over" not in text
    assert "left out   featurecomputes: no right to them" in text
    assert not report.healthy
    assert report.stalled
    assert report.headline() == (
        "healthy: 1/3 Inference, 1/1 ModelAccess, 1/1 ComputePool; Inference ads/astray Stalled"
    )


def test_of_many_that_are_not_as_they_should_be_a_few_are_listed_and_the_rest_counted() -> None:
    broken = [an_inference(f"m{number}", status=STALLED) for number in range(MAX_ATTENTION + 5)]
    report = report_fleet(FleetObjects(inferences=broken), NOW, "0.1.0", "ads")
    assert (len(report.attention), report.attention_more) == (MAX_ATTENTION, 5)
    text = "\n".join(report.render_lines(wide=False))
    assert "and 5 more" in text
    assert "namespace ads" in text


def test_a_fleet_in_which_all_is_well_lists_nobody() -> None:
    report = report_fleet(FleetObjects(inferences=[an_inference(status=READY)]), NOW, "0.1.0", None)
    assert report.healthy
    assert list(report.object_names()) == []
    assert "STATE" not in "\n".join(report.render_lines(wide=True))


# one object


def a_pod(name: str, *, ready: bool = True, **status: Any) -> dict[str, Any]:
    body = pod_on("node-0", name)
    body["metadata"]["creationTimestamp"] = EARLIER
    body["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}], **status}
    return body


def an_event(reason: str, at: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {}, "type": "Normal", "reason": reason, "message": "m", "lastTimestamp": at, **more}


def of_inference(one: Inference, **beside: Any) -> InferenceStatusReport:
    access = a_model_access(
        "home",
        routes=[a_route("all", "ctr", "cvr", fallback={"inference": "base"})],
        status={
            "routes": [
                {
                    "name": "all",
                    "targets": [
                        {"inference": "ctr", "weight": 90, "endpoints": 2},
                        {"inference": "cvr", "weight": 10, "endpoints": 1},
                    ],
                    "fallback": {"inference": "base", "serving": False, "endpoints": 1},
                }
            ]
        },
    )
    elsewhere = a_model_access("home", "shop", routes=[a_route("all", "ctr")])
    overrides = [a_compute_override("sale", pin={"replicas": 3})]
    return report_inference(one, [access, elsewhere], overrides, RelatedObjects(NOW, **beside))


def test_an_inference_shows_versions_pods_routes_and_events() -> None:
    status = {
        **LOADING,
        "replicas": 2,
        "readyReplicas": 1,
        "versions": {"serving": "1", "loaded": ["1"], "target": "2"},
        "failure": {"version": "2", "reason": "LoadFailed", "message": "no input"},
    }
    stuck = {
        "name": "triton",
        "image": "x",
        "restartCount": 4,
        "state": {"waiting": {"reason": "ErrImagePull"}},
    }
    report = of_inference(
        an_inference(status=status, replicas=2, model={"version": "2"}),
        pods=[a_pod("a"), a_pod("b", ready=False, phase="Pending", containerStatuses=[stuck])],
        events=[
            an_event("Older", "2026-01-01T11:00:00Z"),
            an_event("Newer", "2026-01-01T11:59:00Z", type="Warning", count=3),
        ],
    )
    assert [each.name for each in report.pods] == ["b", "a"]
    assert report.pods[0].restarts == 4
    assert [(each.access, each.role.value, each.weight, each.endpoints) for each in report.accesses] == [
        ("ads/home", "Target", 90, 2)
    ]
    text = "\n".join(report.render_lines(wide=False))
    for said in (
        "Inference ads/ctr: Progressing since 2026-01-01T11:00:00Z",
        "serving 1, spec asks for 2, loaded 1",
        "version 2: LoadFailed: no input",
        "1 ready of 2, 2 exist",
        "ErrImagePull",
        "1m    ! Newer x3",
        "ComputeOverride sale pins 3",
    ):
        assert said in text, text
    assert "uri" not in text
    assert "file:///models/ctr" in "\n".join(report.render_lines(wide=True))
    fallback = of_inference(an_inference("base", status=READY))
    assert [(each.role.value, each.weight) for each in fallback.accesses] == [("Fallback", None)]


def test_pods_and_events_are_bounded_and_those_not_ready_come_first() -> None:
    pods = [a_pod(f"p{number:03}", ready=number != 70) for number in range(MAX_PODS + 30)]
    events = [an_event(f"E{number}", EARLIER) for number in range(MAX_EVENTS + 9)]
    report = of_inference(an_inference(status=READY), pods=pods, events=events, skipped=["x"])
    assert (len(report.pods), report.pod_count, len(report.events)) == (MAX_PODS, MAX_PODS + 30, MAX_EVENTS)
    assert report.pods[0].name == "p070"
    text = "\n".join(report.render_lines(wide=False))
    assert "and 30 more pods" in text
    assert "left out    x" in text


def test_an_access_shows_shares_in_effect_and_its_release() -> None:
    access = released(a_release(steps=[10, 100]), step=1, weight=10)
    routes = access.status.model_validate(
        {
            "routes": [
                {
                    "name": "default",
                    "targets": [
                        {"inference": "v3", "weight": 90, "endpoints": 2},
                        {"inference": "v4", "weight": 30, "endpoints": 1},
                    ],
                    "mirror": [{"inference": "v5", "percent": 5, "endpoints": 1}],
                    "fallback": {"inference": "base", "serving": True, "endpoints": 1},
                }
            ],
        }
    )
    status = access.status.model_copy(update={"routes": routes.routes})
    one = access.model_copy(update={"status": status})
    report = report_access(one, [an_inference("v3", status=READY)], RelatedObjects(NOW))
    assert [(each.inference, each.share, each.state) for each in report.routes] == [
        ("v3", 75.0, ObjectState.READY),
        ("v4", 25.0, None),
        ("v5", 5.0, None),
        ("base", None, None),
    ]
    text = "\n".join(report.render_lines(wide=False))
    assert "release     route default: Inference v4 has 10 %" in text
    assert "Fallback, serving" in text
    assert "not all run it" in text


def test_a_pool_shows_what_holds_it_and_who_is_placed_in_it() -> None:
    placed = {"placement": {"pool": "cpu-a", "slices": 2}}
    others = [an_inference("free"), an_inference("far", placement={"pool": "gold"})]
    ready = an_inference("ctr", status={**READY, "readyReplicas": 1}, **placed)
    late = an_inference("cvr", status=LOADING, replicas=3, **placed)
    hold = a_compute_override(
        "stop", target={"kind": "ComputePool", "namespace": None, "name": "cpu-a"}, hold=True
    )
    within = PoolObjects([*others, ready, late], [a_decision(("ctr", 1, 3))], [hold])
    report = report_pool(a_compute_pool(status=READY), within, RelatedObjects(NOW))
    assert [(each.inference, each.slices) for each in report.placed] == [("ads/cvr", 6), ("ads/ctr", 2)]
    text = "\n".join(report.render_lines(wide=False))
    assert "ComputeOverride stop" in text
    assert "1/1" in text
    assert "cpu-a-1 at" in text


@pytest.mark.parametrize(("failed", "failures"), [(0, ""), (2, ", 2 failed")])
def test_features_show_the_run_of_their_backfill(failed: int, failures: str) -> None:
    run = {"run": "abc", "output": "s3://lake/abc", "shards": 16, "done": 3, "failed": failed}
    report = report_features(a_feature_compute(status={"backfill": run}), RelatedObjects(NOW))

    lines = [line.split(maxsplit=1) for line in report.summary_lines(wide=False)]
    assert ["backfill", f"3 of 16 shards{failures}, run abc"] in lines
    without = report_features(a_feature_compute(), RelatedObjects(NOW))
    assert not any(line.startswith("backfill") for line in without.summary_lines(wide=False))


def test_features_show_their_plan() -> None:
    status = {**READY, "planHash": "a" * 64, "readyReplicas": 1}
    report = report_features(a_feature_compute(status=status), RelatedObjects(NOW))
    assert f"plan        {'a' * 12}\n" in "\n".join(report.render_lines(wide=False))
    assert "a" * 64 in "\n".join(report.render_lines(wide=True))


# names


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ctr", ObjectName("ctr")),
        ("ads/ctr", ObjectName("ctr", None, "ads")),
        ("mac/ctr", ObjectName("ctr", kinds.MODEL_ACCESS)),
        ("ModelAccess/ads/ctr", ObjectName("ctr", kinds.MODEL_ACCESS, "ads")),
        ("pool/gold", ObjectName("gold", kinds.COMPUTE_POOL)),
        ("features/ctr", ObjectName("ctr", None, "features")),
    ],
)
def test_names_are_read_with_their_kind_and_namespace(text: str, meant: ObjectName) -> None:
    assert parse_object_name(text) == meant


@pytest.mark.parametrize("text", ["", "/", "a/b/c", "inference/", "inference//ctr", "ads/", "pool/ads/gold"])
def test_what_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not name an object"):
        parse_object_name(text)


# waiting


@dataclass
class Look:
    """One look: what it found, or the error that it met."""

    settled: bool = False
    stalled: bool = False
    line: str = "on its way"
    error: Exception | None = None

    def headline(self) -> str:
        return self.line


async def waited(
    looks: Sequence[Look], patience_s: float = 30.0, stalled_s: float = 0.05
) -> tuple[Look, list[str]]:
    left, told = list(looks), list[str]()

    async def look() -> Look:
        one = left.pop(0) if len(left) > 1 else left[0]
        if one.error is not None:
            raise one.error
        return one

    patience = timedelta(seconds=patience_s)
    found = await wait_until_settled(look, patience, told.append, interval_s=0.005, stalled_for_s=stalled_s)
    return found, told


async def test_it_waits_until_it_is_settled_and_tells_each_change_once() -> None:
    looks = [Look(), Look(), Look(error=ApiUnavailableError("away")), Look(line="nearly"), Look(settled=True)]
    found, told = await waited(looks)
    assert found.settled
    assert told == ["on its way", "away", "nearly"]


async def test_what_is_stalled_for_a_while_is_given_up_and_a_blip_is_not() -> None:
    stalled = Look(stalled=True, line="stalled")
    async with ends_in_time("it is given up"):
        found, told = await waited([Look(), stalled])
    assert (found.stalled, told) == (True, ["on its way", "stalled"])
    found, _ = await waited([stalled, Look(), stalled, Look(settled=True)], stalled_s=60.0)
    assert found.settled


async def test_it_waits_no_longer_than_it_was_told() -> None:
    async with ends_in_time("it gives up"):
        found, _ = await waited([Look()], patience_s=0.05)
    assert not found.settled
    with pytest.raises(ApiUnavailableError):
        async with ends_in_time("it gives up"):
            await waited([Look(error=ApiUnavailableError("away"))], patience_s=0.05)
    with pytest.raises(PermanentError):
        await waited([Look(), Look(error=PermanentError("deleted"))])


def test_a_wait_that_is_no_duration_is_refused() -> None:
    done = CliRunner().invoke(app, ["status", "ctr", "--wait", "--timeout", "soon"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "soon" in done.output


def test_json_has_every_field_of_the_schema() -> None:
    report = report_fleet(a_fleet(), datetime(2026, 1, 1, tzinfo=UTC), "0.1.0", None)
    assert set(report.to_json()) == set(FleetReport.model_json_schema(mode="serialization")["required"])

"""What `tidegate history`, `why`, `hold`, `override` and `resume` say: objects in, lines and JSON out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from builders.allocator import NOW, a_decision
from builders.compute_override import a_compute_override
from builders.compute_pool import a_compute_pool
from builders.conditions import a_condition
from builders.graph_status import a_graph_status
from builders.inference import an_inference
from tidegate.api.compute_override import ComputeOverride, OverrideAction, OverrideKind
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.cli.object_names import TARGET_KINDS, parse_target_name
from tidegate.cli.options import OutputFormat, print_report
from tidegate.errors import PermanentError
from tidegate.kube.kinds import INFERENCE, Kind
from tidegate.kube.kubeconfig import read_default_namespace
from tidegate.main import app
from tidegate.planning.pools.override_requests import (
    OverrideContext,
    OverrideRequest,
    OverrideWrite,
    make_override_name,
    plan_ending,
    plan_override_write,
    preview_override,
)
from tidegate.reports.decision import HistoryReport, report_history
from tidegate.reports.explanation import ExplanationInputs, explain_inference, explain_pool
from tidegate.reports.overrides import OverrideEffect, SteeringReport, report_applied, report_ended
from tidegate.reports.report import Report

POOL_HELD = {"target": {"kind": "ComputePool", "namespace": None, "name": "cpu-a"}, "hold": True}
BOUND = [{"constraint": "capacity of cpu-a: 4 slices", "price": 0.5}]


def a_model(*, scaling: bool = True, **more: Any) -> Inference:
    """ads/ctr in cpu-a, with a range from 1 to 6 unless told otherwise."""
    number = {"scaling": {"minReplicas": 1, "maxReplicas": 6}} if scaling else {"replicas": 2}
    return an_inference(placement={"pool": "cpu-a"}, **number, **more)


def moved(**more: Any) -> Inference:
    """One that a decision gave three replicas, two of which answer."""
    status = {
        "observedGeneration": 1,
        "replicas": 3,
        "readyReplicas": 2,
        "allocation": {"replicas": 3, "decision": "cpu-a-1", "epoch": 1},
        "conditions": [
            a_condition("Ready", "False", "NoCapacity", "1 of 3 replicas waits for a node"),
            a_condition("Placed", "True", "Placed", "on slices"),
            a_condition("Reconciling", "True", "WaitingForReplicas", "1 to come"),
            a_condition("Stalled", "False", "Reconciled", "nothing to change"),
        ],
    }
    return a_model(status=status, **more)


def lines(report: Report, *, wide: bool = False) -> str:
    return "\n".join(report.render_lines(wide=wide))


# history


def some_decisions() -> HistoryReport:
    earlier = NOW - timedelta(minutes=5)
    return report_history(
        [
            a_decision(("ctr", 1, 3), ("batch", 3, 1), at=earlier, outcome={"error": "overtaken by another"}),
            a_decision(
                *((f"m{number}", 0, 1) for number in range(5)),
                name="cpu-a-2",
                trigger="NodeLost",
                binding=BOUND,
                outcome={"appliedAt": "2026-01-01T12:00:09Z", "reclaimSeconds": 2.5},
            ),
            a_decision(("ctr", 3, 2), name="cpu-a-0", mode="RecommendOnly", at=earlier - timedelta(1)),
        ],
        "anybody",
    )


def test_history_has_the_newest_first_and_says_what_came_of_each() -> None:
    head, *rows = lines(some_decisions()).splitlines()
    assert head.split() == ["AT", "POOL", "MODE", "TRIGGER", "MOVES", "BINDING", "OUTCOME"]
    cells = [row.split("   ") for row in rows]
    assert [[cell.strip() for cell in row if cell] for row in cells] == [
        [
            "2026-01-01T12:00:00Z",
            "cpu-a",
            "Auto",
            "NodeLost",
            "ads/m0 0->1, ads/m1 0->1, ads/m2 0->1 and 2 more",
            "capacity of cpu-a: 4 slices",
            "executed at 2026-01-01T12:00:09Z, slices free after 2.5 s",
        ],
        [
            "2026-01-01T11:55:00Z",
            "cpu-a",
            "Auto",
            "-",
            "ads/ctr 1->3, ads/batch 3->1",
            "-",
            "given up: overtaken by another",
        ],
        ["2025-12-31T11:55:00Z", "cpu-a", "RecommendOnly", "-", "ads/ctr 3->2", "-", "recommended"],
    ]


@pytest.mark.parametrize(
    ("of", "names"),
    [
        ({"inference": "ads/ctr"}, ["cpu-a-1"]),
        ({"inference": "ads/ct"}, []),
        ({"namespace": "ads"}, ["cpu-a-1"]),
        ({"namespace": "ad"}, []),
        ({"pool": "cpu-a"}, ["cpu-a-2", "cpu-a-1"]),
        ({"pool": "gpu-a"}, []),
        ({"moving": ["ads/batch", "ads/other"]}, ["cpu-a-1"]),
        ({"moving": ["ads/other"]}, []),
        ({"moving": []}, []),
    ],
)
def test_history_is_about_whom_it_was_asked(of: dict[str, Any], names: list[str]) -> None:
    empty = a_decision(name="cpu-a-2", at=NOW + timedelta(minutes=1))
    found = report_history([a_decision(("ctr", 1, 3), ("batch", 3, 1)), empty], "them", **of)
    assert [each.name for each in found.decisions] == names
    if not names:
        assert lines(found) == "no decision about them"


def test_history_of_an_inference_shows_its_own_moves() -> None:
    found = report_history([a_decision(("ctr", 1, 3), ("batch", 3, 1))], "it", inference="ads/ctr")
    assert "ads/batch" not in lines(found)
    assert [move.inference for move in found.decisions[0].moves] == ["ads/ctr", "ads/batch"]


# why


def test_why_says_who_decided_what_binds_and_what_is_not_as_it_should_be() -> None:
    decision = a_decision(("ctr", 1, 3), binding=BOUND, outcome={"appliedAt": "2026-01-01T12:00:09Z"})
    pinned = a_compute_override("sale", pin={"replicas": 3})
    over = a_compute_override("over", pin={"replicas": 9}, expiresAt="2026-01-01T11:00:00Z")
    other = a_compute_override("other", hold=True, target={"name": "ctr2"})
    report = explain_inference(
        moved(), ExplanationInputs(a_compute_pool(), [decision], [pinned, over, other], NOW)
    )
    said = lines(report)
    assert "3 replicas, 2 ready, of 1 to 6" in said
    assert "3 replicas, by AllocationDecision cpu-a-1 at 2026-01-01T12:00:00Z" in said
    assert "1 -> 3:" in said
    assert "capacity of cpu-a: 4 slices, worth 0.5 per second and unit" in said
    assert "Ready is False, NoCapacity: 1 of 3 replicas waits for a node" in said
    assert "Reconciling is True, WaitingForReplicas" in said
    assert "Placed is" not in said
    assert "Stalled is" not in said
    assert [each.name for each in report.overrides] == ["sale"]
    assert "Placed is True" in lines(report, wide=True)
    assert list(report.object_names()) == ["inference.tidegate.io/ctr"]


def test_why_tells_what_a_newer_decision_would_do() -> None:
    newer = a_decision(("ctr", 3, 5), name="cpu-a-2", mode="RecommendOnly", at=NOW + timedelta(minutes=1))
    report = explain_inference(
        moved(), ExplanationInputs(a_compute_pool(), [a_decision(("ctr", 1, 3)), newer], [], NOW)
    )
    assert "would move  3 -> 5" in lines(report)
    assert "AllocationDecision cpu-a-2, recommended" in lines(report)


def test_why_without_an_allocator_or_a_decision() -> None:
    seen = ExplanationInputs(a_compute_pool(), [], [], NOW)
    assert "2 replicas, by spec.replicas" in lines(explain_inference(a_model(scaling=False), seen))
    assert "1 replicas, by spec.scaling.minReplicas" in lines(explain_inference(a_model(), seen))
    gone = explain_inference(moved(), seen)
    assert "by AllocationDecision cpu-a-1 which is not kept any more" in lines(gone)
    assert "outdated" in lines(explain_inference(a_model(metadata={"generation": 2}), seen))


def test_why_shows_what_became_of_the_graph_and_what_runs_each_shape() -> None:
    inference = a_model(scaling=False, status={"graph": a_graph_status("no faster: 0.98x")})
    report = explain_inference(inference, ExplanationInputs(a_compute_pool(), [], [], NOW))
    shown = lines(report).splitlines()
    assert [line[2:] for line in shown if line.startswith(("  graph", "  pass", "  shape"))] == [
        "graph       version 3 has 12 of 602 operations, speed-up by rows 1: 19.82x, 128: 2.27x, one row of user, 24 requests "
        "compared; 2 replicas serve it compiled",
        "pass        fuseEmbeddings changed 300 places",
        "shape       ids 16x60 in OpenVINO, 1.31x, error 2.0e-07",
        "shape       ids 1x60 in ONNX Runtime: no faster: 0.98x",
        "shape       ids 2x60 is compiled",
    ]
    assert "pass        simplify left out: no faster: 0.98x" in lines(report, wide=True)
    assert report.to_json()["graph"]["buckets"][0]["error"] == "2.0e-07"
    assert explain_inference(a_model(), ExplanationInputs(None, [], [], NOW)).graph is None


def test_why_of_a_pool_names_all_that_holds_it() -> None:
    pool = a_compute_pool(
        policy={"mode": "Hold", "freeze": [{"schedule": "0 11 * * *", "duration": "2h"}]},
        status={
            "observedGeneration": 1,
            "nodes": 1,
            "slices": {"total": 4, "healthy": 3, "free": 1},
            "tiers": [{"name": "realtime", "slices": 2}],
            "mode": "Hold",
            "conditions": [
                a_condition("EventsPlanned", "True", "EventsPlanned", "sale: 3 x until 2026-01-01T14:00:00Z")
            ],
        },
    )
    hold = a_compute_override("freeze", metadata={"annotations": {"tidegate.io/author": "ann"}}, **POOL_HELD)
    report = explain_pool(pool, ExplanationInputs(pool, [a_decision(("ctr", 1, 3))], [hold], NOW))
    assert [(each.by, each.name, each.until) for each in report.held_by] == [
        ("ComputeOverride", "freeze", datetime(2026, 1, 2, tzinfo=UTC)),
        ("policy.mode", None, None),
        ("policy.freeze", None, datetime(2026, 1, 1, 13, tzinfo=UTC)),
    ]
    said = lines(report)
    assert "4, 3 healthy, 1 free, realtime 2" in said
    assert "ComputeOverride freeze by ann holds it as it is until 2026-01-02T00:00:00Z: the sale" in said
    assert "frozen until 2026-01-01T13:00:00Z by spec.policy.freeze[0]" in said
    assert "AllocationDecision cpu-a-1 at 2026-01-01T12:00:00Z, on its way" in said
    assert "  events      sale: 3 x until 2026-01-01T14:00:00Z" in said
    let_go = a_compute_pool(policy={"mode": "Auto"})
    assert explain_pool(let_go, ExplanationInputs(let_go, [], [], NOW)).held_by == ()


# hold, override, resume


def a_target(
    *overrides: ComputeOverride, inference: Inference | None = None, mode: str = "Auto", now: datetime = NOW
) -> OverrideContext:
    """ads/ctr in cpu-a, or another one; or that pool itself where the pool is meant."""
    return OverrideContext(inference, a_compute_pool(policy={"mode": mode}), overrides, now)


def stored(step: OverrideWrite) -> ComputeOverride:
    """What the API server would have made of a new one."""
    made = {"uid": "u", "creationTimestamp": "2026-01-01T12:00:00Z"}
    return ComputeOverride.parse({**step.body, "metadata": {**step.body["metadata"], **made}})


def steered(seen: OverrideContext, wanted: OverrideRequest) -> SteeringReport:
    """What the command says once it is made."""
    step = plan_override_write(seen, wanted)
    return report_applied(seen, step, stored(step))


HOLD = OverrideRequest("2h", "the sale")
PIN = OverrideRequest("2h", "the sale", pin=9)


def test_a_hold_is_made_once_and_changed_after_that() -> None:
    step = plan_override_write(a_target(), HOLD)
    made = stored(step)
    assert (step.existing, step.ended) == (None, None)
    assert (made.spec.hold, made.spec.expires_at, made.spec.target.kind) == (
        True,
        "2026-01-01T14:00:00Z",
        OverrideKind.COMPUTE_POOL,
    )
    later = a_target(made, now=NOW + timedelta(minutes=30))
    again = plan_override_write(later, HOLD)
    assert again.existing is made
    assert again.body["spec"]["expiresAt"] == "2026-01-01T14:30:00Z"
    # One that has ended cannot be told from one that was never made: it gets out of the way.
    anew = plan_override_write(a_target(made, now=NOW + timedelta(days=1)), HOLD)
    assert (anew.existing, anew.ended) == (None, made)
    assert plan_ending(a_target(made), OverrideAction.HOLD) == (made,)
    assert plan_ending(a_target(), OverrideAction.HOLD) == ()


def test_names_of_overrides_are_unique() -> None:
    keys = [ObjectKey("ads", "ctr-x"), ObjectKey("ads-ctr", "x"), ObjectKey("", "ads-ctr-x")]
    kinds = [OverrideKind.INFERENCE, OverrideKind.INFERENCE, OverrideKind.COMPUTE_POOL]
    names = {make_override_name(OverrideAction.PIN, kind, key) for kind, key in zip(kinds, keys, strict=True)}
    assert len(names) == 3
    long = make_override_name(OverrideAction.PIN, OverrideKind.INFERENCE, ObjectKey("n" * 63, "m" * 63))
    assert len(long) <= 63


@pytest.mark.parametrize(
    ("target", "wanted", "said"),
    [
        (a_target(), OverrideRequest("2h", " \n"), "--reason is empty"),
        (a_target(), OverrideRequest("169h", "x"), "--for 169h: an override lasts from 1m to 168h"),
        (a_target(), OverrideRequest("59s", "x"), "from 1m to 168h"),
        (a_target(), OverrideRequest("soon", "x"), "'soon' is not a duration"),
        (a_target(), PIN, "ComputePool cpu-a can only be held"),
        (a_target(inference=a_model(scaling=False)), HOLD, "spec.replicas is fixed: set spec.scaling"),
        (a_target(), OverrideRequest("2h", "x" * 513), "spec.reason"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    target: OverrideContext, wanted: OverrideRequest, said: str
) -> None:
    with pytest.raises((PermanentError, ValueError), match=re.escape(said)):
        plan_override_write(target, wanted)


def test_none_lasts_longer_than_a_week_by_being_changed() -> None:
    made = stored(plan_override_write(a_target(), OverrideRequest("160h", "the sale")))
    later = a_target(made, now=NOW + timedelta(hours=100))
    within, beyond = (
        plan_override_write(later, OverrideRequest("68h", "x")),
        plan_override_write(later, OverrideRequest("100h", "x")),
    )
    ends = [step.body["spec"]["expiresAt"] for step in (within, beyond)]
    assert ends == ["2026-01-08T12:00:00Z"] * 2
    assert within.shortened == ""
    assert "none lasts longer than 168h" in report_applied(later, beyond, made).warnings[0]


def test_a_name_that_somebody_else_has_is_not_taken() -> None:
    name = make_override_name(OverrideAction.HOLD, OverrideKind.COMPUTE_POOL, ObjectKey("", "cpu-a"))
    with pytest.raises(PermanentError, match=f"kubectl delete computeoverride {name}"):
        plan_override_write(a_target(a_compute_override(name, hold=True)), HOLD)


def test_what_stands_in_the_way_of_an_override_is_said() -> None:
    newest = a_compute_override(
        "newer", pin={"replicas": 2}, metadata={"creationTimestamp": "2026-01-01T11:59:00Z"}
    )
    seen = a_target(newest, inference=a_model(), mode="RecommendOnly")
    report = steered(seen, OverrideRequest("2h", "x", floor=9))
    assert [each.partition(":")[0] for each in report.warnings[:2]] == [
        "ComputePool cpu-a is in mode RecommendOnly",
        "spec.scaling of Inference ads/ctr is 1 to 6",
    ]
    assert "9 counts as 6" in report.warnings[1]
    assert "pins 2 replicas" in report.warnings[2]
    assert "pins and holds count before floors" in report.warnings[2]
    free = a_target(inference=a_model())
    assert steered(free, HOLD).warnings == ()
    # The newest pin or hold counts: this one.
    pinned = a_target(newest, inference=a_model())
    assert steered(pinned, HOLD).warnings == ()


def test_a_dry_run_is_marked_in_every_line_of_an_override() -> None:
    context = a_target()
    step = plan_override_write(context, HOLD)
    report = report_applied(context, step, preview_override(context, step), dry_run=True)
    assert lines(report).endswith(" (dry run)")
    assert report.to_json()["dryRun"] is True
    assert "dry run" not in lines(steered(context, HOLD))
    ended = report_ended(a_target(stored(step)), [stored(step)], dry_run=True)
    assert lines(ended).endswith(" (dry run)")


def test_resume_tells_what_else_holds_it() -> None:
    made = stored(plan_override_write(a_target(), HOLD))
    assert not report_ended(a_target(made), [made]).still_held
    other = a_compute_override("other", **POOL_HELD)
    report = report_ended(a_target(made, other, mode="Hold"), [made])
    assert report.still_held
    assert [(each.by, each.name) for each in report.held_by] == [
        ("ComputeOverride", "other"),
        ("policy.mode", None),
    ]
    assert "ended ComputeOverride hold-cpu-a" in lines(report)
    assert "held as well: ComputeOverride other" in lines(report)
    nothing = report_ended(a_target(), [])
    assert (nothing.done, nothing.still_held) == (OverrideEffect.NOTHING_TO_END, False)


# names and options


@pytest.mark.parametrize(
    ("text", "among", "said"),
    [
        ("modelaccess/ctr", TARGET_KINDS, "'modelaccess/ctr' is no Inference or ComputePool"),
        ("pool/cpu-a", (INFERENCE,), "'pool/cpu-a' is no Inference"),
    ],
)
def test_a_kind_that_is_not_meant_here_is_refused(text: str, among: Sequence[Kind], said: str) -> None:
    with pytest.raises(PermanentError, match=said):
        parse_target_name(text, among)


def test_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    path = tmp_path / "config"
    contexts = [{"name": "a", "context": {"namespace": "ads"}}, {"name": "b", "context": {}}]
    path.write_text(yaml.safe_dump({"current-context": "a", "contexts": contexts}))
    assert [read_default_namespace(path, context) for context in (None, "a", "b")] == [
        "ads",
        "ads",
        "default",
    ]
    second = tmp_path / "second"
    other = {"name": "b", "context": {"namespace": "shop"}}
    second.write_text(yaml.safe_dump({"current-context": "b", "contexts": [other]}))
    listed = Path(f"{tmp_path / 'missing'}:{second}:{path}")
    assert [read_default_namespace(listed, context) for context in (None, "a", "b")] == [
        "shop",
        "ads",
        "shop",
    ]
    path.write_text("- no kubeconfig")
    with pytest.raises(PermanentError, match="cannot read the context's namespace"):
        read_default_namespace(path, None)
    with pytest.raises(PermanentError, match="does not exist"):
        read_default_namespace(tmp_path / "missing", None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("hold", "cpu-a", "--for", "2h"), "--reason"),
        (("hold", "cpu-a", "--reason", "x"), "--for"),
        (("override", "ads/ctr", "--for", "2h", "--reason", "x"), "exactly one of"),
        (
            ("override", "ads/ctr", "--pin", "2", "--floor", "1", "--for", "2h", "--reason", "x"),
            "exactly one of",
        ),
        (("override", "ads/ctr", "--pin", "2", "--for", "2h"), "--reason are needed"),
        (("override", "ads/ctr", "--end", "--for", "2h"), "leave --for"),
        (("why", "ctr", "-A", "-n", "ads"), "leave one of them out"),
        (("why",), "INFERENCE|POOL"),
        (
            ("why", "pol", "gold"),
            'unknown kind "pol"; expected one of: AllocationDecision, ComputeOverride, ',
        ),
        (("doctor", "-n", "ads"), "No such option: -n"),
        (("plan", "gold", "-n", "ads"), "No such option: -n"),
        (("xds", "status", "-n", "ads"), "No such option: -n"),
        (("plan", "inference", "ctr"), "'inference/ctr' is no ComputePool"),
        (("get", "sevices"), 'unknown kind "sevices"; expected one of: inferences, '),
        (("hold", "cpu-a", "--for", "9y", "--reason", "x"), "--for 9y: "),
        (("hold", "cpu-a", "--for", "30s", "--reason", "x"), "an override lasts from 1m to"),
        (("hold", "cpu-a", "--for", "2h", "--reason", " "), "--reason is empty"),
        (("override", "ads/ctr", "--pin", "2", "--for", "9y", "--reason", "x"), "--for 9y: "),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: tuple[str, ...], said: str) -> None:
    refused = CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "TERM": "dumb"})
    assert refused.exit_code == 2
    assert said in refused.output


@pytest.mark.parametrize("output", [OutputFormat.JSON, OutputFormat.YAML])
def test_json_and_yaml_say_all_that_a_report_has(
    output: OutputFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    report = some_decisions()
    print_report(report, output)
    said = capsys.readouterr().out
    read = json.loads(said) if output is OutputFormat.JSON else yaml.safe_load(said)
    assert HistoryReport.model_validate(read) == report
    assert set(read["decisions"][0]) == {
        field.alias for field in type(report.decisions[0]).model_fields.values()
    }


def test_names_are_what_kubectl_takes(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(some_decisions(), OutputFormat.NAME)
    assert capsys.readouterr().out.split() == [
        f"allocationdecision.tidegate.io/cpu-a-{number}" for number in (2, 1, 0)
    ]

"""`tidegate simulate`: the table, JSON and page of the example, and what it refuses."""

from __future__ import annotations

import json
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from tidegate.main import app
from tidegate.simulation.policies import DESCRIPTIONS

EXAMPLE = Path(__file__).parents[2] / "examples" / "simulation"
POOL = EXAMPLE / "pool.yaml"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's trace, of eight days."""
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    module = runpy.run_path(str(EXAMPLE / "make_trace.py"))
    lines: list[str] = []
    module["main"].__globals__["print"] = lines.append
    module["main"]()
    path.write_text("\n".join(lines) + "\n")
    return path


def test_policies_are_compared_on_the_evening_of_the_example(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "day.html"
    result = run(
        trace, "-f", EXAMPLE, "--slices", "20", "--load", "90s", "--last", "5h", "--interval", "2m",
        "--html", page, "-o", "json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["pool"] == "cpu-a"
    assert report["inferences"] == ["ads/ctr", "ads/embed", "ads/rank"]
    policies = {policy["policy"]: policy for policy in report["policies"]}
    assert list(policies) == list(DESCRIPTIONS)
    assert policies["forecast"]["missedMinutes"] < policies["present"]["missedMinutes"]
    assert policies["oracle"]["missedMinutes"] == 0
    assert policies["static"]["value"] < policies["forecast"]["value"] <= policies["oracle"]["value"]
    assert len(policies["forecast"]["points"]) == 150
    assert sum(policies["forecast"]["points"][0]["slices"].values()) <= 20
    text = page.read_text()
    ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + len("</svg>")])
    assert text.count("<svg") == 4 * len(DESCRIPTIONS)


def test_table_has_a_line_for_each_chosen_policy_and_the_oracle(trace: Path) -> None:
    result = run(
        trace, "-f", POOL, "--slices", "20", "--last", "1h", "--policy", "present", "--policy", "hpa"
    )
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "computepool/cpu-a: 20 slices, 3 Inferences, 1 h after 190.933 h of history"
    assert lines[1] == 'with {"slices": 20}'
    assert [line.split()[0] for line in lines[3:]] == ["POLICY", "present", "hpa", "oracle"]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "best"), "policy: there is no 'best'; there are forecast, present,"),
        (("--last", "300h"), "has 191.9 h, less than the 300.0 h to simulate: give a smaller --last"),
        (("--pool", "gpu-a"), "has no ComputePool gpu-a; there are: cpu-a"),
        (("--quantile", "1.5"), "forecast.quantile: 1.5 is not between 0 and 1"),
        (("--interval", "2h"), "interval: 7200 s is not between 1 s and an hour"),
        (("--last", "0s"), "last: is shorter than an interval"),
        (("--html", "/nonexistent/day.html"), "cannot write /nonexistent/day.html"),
    ],
)
def test_option_that_does_not_fit_is_named(trace: Path, arguments: tuple[str, ...], message: str) -> None:
    result = run(trace, "-f", POOL, "--slices", "20", *arguments)
    assert result.exit_code == 3
    assert message in result.stderr


def test_column_of_no_inference_is_reported_and_a_mark_of_utf_8_is_not(trace: Path, tmp_path: Path) -> None:
    header, *lines = trace.read_text().splitlines()
    text = "\n".join([f"\ufeff{header},ads/embedd", *(f"{line}," for line in lines)])
    marked = write(tmp_path / "trace.csv", text)
    result = run(marked, "-f", POOL, "--slices", "20", "--last", "10m", "--policy", "static")
    assert result.exit_code == 0, result.stderr
    assert "columns that are no Inference of cpu-a: ads/embedd" in result.stderr


def test_duration_that_is_none_is_a_usage_error(trace: Path) -> None:
    result = run(trace, "-f", POOL, "--slices", "20", "--load", "soon")
    assert result.exit_code == 2
    assert "--load: 'soon' is not a duration" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("capacity: {requestsPerSecond", "# {"), "inference ads/ctr: has no spec.capacity; measure it with"),
        (("pool: cpu-a}\n  scaling", "pool: other}\n  scaling"), "trace: has no column"),
        (("kind: ComputePool", "kind: ComputePools"), "is not in tidegate.io/v1alpha1; use ComputePool"),
        (
            ("tiers: {offline", "policy: {forecast: {timeZone: Mars/Olympus}}\n  tiers: {offline"),
            "ComputePool cpu-a: spec.policy.forecast.timeZone 'Mars/Olympus': there is no such time zone",
        ),
        (('value: {perRequest: "2"}', 'value: {perRequest: "0"}'), "spec.value.perRequest"),
    ],
)
def test_manifest_that_does_not_fit_is_named(
    trace: Path, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    manifest = write(tmp_path / "pool.yaml", POOL.read_text().replace(*change, 1))
    if "no column" in message:
        trace = write(tmp_path / "trace.csv", trace.read_text().replace("ads/rank", "ads/rerank", 1))
    result = run(trace, "-f", manifest, "--slices", "20", "--last", "1h")
    assert result.exit_code == 3
    assert message in result.stderr


@pytest.mark.parametrize(
    ("policies", "exit_code"), [(("present", "static"), 0), (("forecast",), 3), (("static", "forecast"), 3)]
)
def test_a_pool_with_an_unknown_time_zone_can_be_simulated_without_forecasts(
    trace: Path, tmp_path: Path, policies: Sequence[str], exit_code: int
) -> None:
    zone = "policy: {forecast: {timeZone: Mars/Olympus}}\n  tiers: {offline"
    manifest = write(tmp_path / "pool.yaml", POOL.read_text().replace("tiers: {offline", zone, 1))
    chosen = [argument for name in policies for argument in ("--policy", name)]
    result = run(trace, "-f", manifest, "--slices", "20", "--last", "10m", *chosen)
    assert result.exit_code == exit_code, result.stderr
    assert ("there is no such time zone" in result.stderr) is (exit_code == 3)
    listed = [line.split()[0] for line in result.stdout.splitlines()[3:]]
    assert listed == ([] if exit_code else ["POLICY", *policies, "oracle"])


@pytest.mark.parametrize("chosen", [(), ("--pool", "cpu-a")])
def test_two_pools_with_one_name_are_named_as_such(
    trace: Path, tmp_path: Path, chosen: tuple[str, ...]
) -> None:
    again = write(tmp_path / "again.yaml", POOL.read_text().partition("---")[0])
    assert "kind: ComputePool" in again.read_text()
    result = run(trace, "-f", POOL, "-f", again, "--slices", "20", "--last", "1h", *chosen)
    assert result.exit_code == 3
    assert f"{POOL}, {again} has 2 ComputePools with the name cpu-a: remove all but one" in result.stderr


@pytest.mark.parametrize(
    ("chosen", "exit_code", "message"),
    [
        ((), 3, "has several ComputePools; name one with --pool: cpu-a, cpu-b"),
        (("--pool", "cpu-a"), 0, ""),
    ],
)
def test_one_of_two_pools_is_simulated_by_its_name(
    trace: Path, tmp_path: Path, chosen: tuple[str, ...], exit_code: int, message: str
) -> None:
    first = POOL.read_text().partition("---")[0]
    other = write(tmp_path / "other.yaml", first.replace("name: cpu-a", "name: cpu-b", 1))
    result = run(
        trace, "-f", POOL, "-f", other, "--slices", "20", "--last", "10m", "--policy", "static", *chosen
    )
    assert result.exit_code == exit_code, result.stderr
    assert message in result.stderr


def test_trace_that_is_not_there_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = run(tmp_path / "none.csv", "-f", POOL, "--slices", "20")
    assert (missing.exit_code, "cannot read" in missing.stderr) == (3, True)
    broken = run(write(tmp_path / "bad.csv", "time,ads/ctr\n0,x\n"), "-f", POOL, "--slices", "20")
    assert broken.exit_code == 3
    assert "trace, line 2, ads/ctr: 'x' is not a number" in broken.stderr


def test_an_event_of_the_pool_starts_replicas_before_it(tmp_path: Path) -> None:
    """From 20:00 on the demand is three times that of before, without a day of history that would show it."""
    rows = [
        f"2026-11-27T{19 + minute // 60}:{minute % 60:02}:00Z,{300 if minute < 60 else 900},90"
        for minute in range(100)
    ]
    trace = write(tmp_path / "trace.csv", "\n".join(["time,ads/ctr,ads/rank", *rows]))
    sale = 'name: sale, at: "2026-11-27T20:00:00Z", duration: 1h, factor: "3", inferences: [{namespace: ads, name: ctr}]'
    unreadable = 'name: late, schedule: "0 25 * * *", duration: 1h, factor: "2"'
    text = POOL.read_text()
    missed: dict[bool, float] = {}
    for planned in (False, True):
        events = f"  policy: {{events: [{{{sale}}}, {{{unreadable}}}]}}\n" if planned else ""
        manifest = write(tmp_path / "pool.yaml", text.replace("  tiers:", f"{events}  tiers:", 1))
        result = run(
            trace, "-f", manifest, "--slices", "20", "--load", "90s", "--last", "80m",
            "--policy", "present", "-o", "json",
        )  # fmt: skip
        assert result.exit_code == 0, result.stderr
        assert (
            "late is ignored until it is corrected: spec.policy.events[1].schedule" in result.stderr
        ) is planned
        policies = {policy["policy"]: policy for policy in json.loads(result.stdout)["policies"]}
        assert policies["oracle"]["missedMinutes"] == 0
        missed[planned] = policies["present"]["missedMinutes"]
    assert missed[True] == 0
    assert missed[False] > 1


RECORDED = "tidegate.io/recorded"


@pytest.mark.parametrize(
    ("annotations", "arguments", "message"),
    [
        ("", (), "ComputePool cpu-a has no recorded slices: give their number with --slices"),
        ('"{0}-slices": "12"', (), ""),
        ('"{0}-slices": "12"', ("--slices", "20"), ""),
        (
            '"{0}-slices": "many"',
            (),
            "annotation tidegate.io/recorded-slices is 'many', and no number from 1 to",
        ),
        (
            '"{0}-slices": "12", "{0}-nodes": "0"',
            (),
            "annotation tidegate.io/recorded-nodes is '0', and no number",
        ),
    ],
)
def test_slices_are_chosen_or_recorded(
    trace: Path, tmp_path: Path, annotations: str, arguments: tuple[str, ...], message: str
) -> None:
    recorded = f"metadata: {{name: cpu-a, annotations: {{{annotations.format(RECORDED)}}}}}"
    manifest = write(tmp_path / "pool.yaml", POOL.read_text().replace("metadata: {name: cpu-a}", recorded, 1))
    result = run(trace, "-f", manifest, "--last", "10m", "--policy", "static", "-o", "json", *arguments)
    if message:
        assert (result.exit_code, message.format(manifest) in result.stderr) == (3, True), result.stderr
    else:
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["slices"] == (20 if arguments else 12)


def simulate_recorded(
    trace: Path, folder: Path, fact: str, value: str, length: str, *arguments: str
) -> dict[str, Any]:
    """Return the figures of the present rates, with an annotation of `tidegate record` on an Inference."""
    recorded = f'name: ctr, namespace: ads, annotations: {{"{RECORDED}-{fact}": {value}}}'
    manifest = write(folder / "pool.yaml", POOL.read_text().replace("name: ctr, namespace: ads", recorded, 1))
    result = run(
        trace, "-f", manifest, "--slices", "20", "--last", length, "--policy", "present", "-o", "json", *arguments
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    policies = {policy["policy"]: policy for policy in json.loads(result.stdout)["policies"]}
    figures: dict[str, Any] = policies["present"]
    return figures


def test_a_recorded_drain_time_is_that_of_its_inference(trace: Path, tmp_path: Path) -> None:
    def idle_hours(drain: str, *arguments: str) -> float:
        figures = simulate_recorded(trace, tmp_path, "drain", drain, "12h", *arguments)
        return float(figures["idleSliceHours"])

    assert idle_hours("10s") != idle_hours("1200s")
    assert idle_hours("10s", "--drain", "60s") == idle_hours("1200s", "--drain", "60s")


def test_a_recorded_load_time_is_that_of_its_inference(trace: Path, tmp_path: Path) -> None:
    def miss(load: str, *arguments: str) -> float:
        figures = simulate_recorded(trace, tmp_path, "load", load, "5h", *arguments)
        return float(figures["missedMinutes"])

    short, long = miss("10s"), miss("300s")
    assert short < long
    assert miss("10s", "--load", "60s") == miss("300s", "--load", "60s")
    wrong = POOL.read_text().replace(
        "name: ctr, namespace: ads", f'name: ctr, namespace: ads, annotations: {{"{RECORDED}-load": soon}}', 1
    )
    result = run(trace, "-f", write(tmp_path / "pool.yaml", wrong), "--slices", "20")
    assert result.exit_code == 3
    assert (
        "inference ads/ctr: annotation tidegate.io/recorded-load: 'soon' is not a duration" in result.stderr
    )

"""The rules that the chart makes for Prometheus Operator, and those of two releases beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from builders.alert_cases import climbing, traffic
from fixtures.chart import rendered, template
from fixtures.promtool import asked, played, playing
from tidegate.telemetry import scope
from tidegate.telemetry.alerts import ALERTS
from tidegate.telemetry.recording_rules import render_recording_rules

pytestmark = [pytest.mark.integration]

BLUE, GREEN = "blue", "green"
SERVED: Final = {BLUE: "ads", GREEN: "shop"}
"""Which namespace each release serves."""
_PROCESSES: Final = ("controllers", "xds", "web")


def test_rules_for_prometheus_are_made_where_they_are_asked_for(helm: Path) -> None:
    assert ("PrometheusRule", "tidegate-signals") not in rendered(helm)
    asked = {"metrics.rules": {"enabled": True, "labels": {"release": "prometheus"}}}
    made = rendered(helm, asked)["PrometheusRule", "tidegate-signals"]
    assert made["metadata"]["labels"]["release"] == "prometheus"
    assert made["spec"] == render_recording_rules()


def test_alerts_name_the_runbooks_where_somebody_can_open_them(helm: Path) -> None:
    base = "https://git.example.com/tidegate/docs/runbooks"
    asked = {
        "metrics.rules": {"enabled": True, "labels": {"release": "prometheus"}, "runbookBase": f"{base}/"}
    }
    made = rendered(helm, asked)["PrometheusRule", "tidegate-alerts"]
    assert made["metadata"]["labels"]["release"] == "prometheus"
    rules = [rule for group in made["spec"]["groups"] for rule in group["rules"]]
    assert {rule["annotations"]["runbook_url"] for rule in rules} == {
        f"{base}/{alert.runbook_name}.md" for alert in ALERTS
    }
    assert not [rule for rule in rules if "runbook" in rule["annotations"]]
    assert {rule["labels"]["helm_release"] for rule in rules} == {"tidegate-system/tidegate"}
    pods = (
        'namespace="tidegate-system",pod=~"tidegate-(controllers|gateway|node-agent|web|xds)-[^-]+(-[^-]+)?"'
    )
    assert [rule["expr"] for rule in rules] == [
        alert.expression.replace(scope.OWN_PODS, pods) for alert in ALERTS
    ]


def test_without_an_address_an_alert_names_the_page_and_no_url(helm: Path) -> None:
    made = rendered(helm, {"metrics.rules": {"enabled": True}})["PrometheusRule", "tidegate-alerts"]
    rules = [rule for group in made["spec"]["groups"] for rule in group["rules"]]
    assert [rule["annotations"]["runbook"] for rule in rules] == [
        f"docs/runbooks/{alert.runbook_name}.md" for alert in ALERTS
    ]
    assert not [rule for rule in rules if "runbook_url" in rule["annotations"]]


def test_the_address_of_runbooks_is_a_url(helm: Path) -> None:
    refused = template(helm, {"metrics.rules": {"enabled": True, "runbookBase": "docs/runbooks"}})
    assert refused.returncode != 0
    assert "runbookBase" in refused.stderr


def test_signals_can_be_recorded_without_alerts(helm: Path) -> None:
    made = rendered(helm, {"metrics.rules": {"enabled": True, "alerts": False}})
    assert ("PrometheusRule", "tidegate-signals") in made
    assert ("PrometheusRule", "tidegate-alerts") not in made


def rules_of(helm: Path, folder: Path, release: str, namespaces: Sequence[str]) -> Sequence[Path]:
    """The files of a release's PrometheusRules."""
    asked_for = {"metrics.rules": {"enabled": True}, "watchNamespaces": namespaces}
    made = rendered(helm, asked_for, release=release)
    written = []
    for name in (f"{release}-signals", f"{release}-alerts"):
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(made["PrometheusRule", name]["spec"]))
        written.append(path)
    return written


def pod_of(release: str, process: str) -> str:
    """What a Prometheus says of a pod's series."""
    return (
        f'namespace="{release}-system",pod="{release}-{process}-6d5f8-x2k4p",instance="{release}-{process}"'
    )


def well(release: str, minutes: int) -> dict[str, str]:
    """The series of a release with nothing wrong, for so long."""
    served = SERVED[release]
    calls = {
        name.replace('namespace="ads"', f'namespace="{served}"').replace(
            "inference/ads", f"inference/{served}"
        ): values
        for name, values in traffic((minutes, 600, 600)).items()
    }
    builds = {
        f'tidegate_build_info{{process="{each}",{pod_of(release, each)}}}': f"1x{minutes}"
        for each in _PROCESSES
    }
    return {
        **calls,
        **builds,
        f"tidegate_leader{{{pod_of(release, 'controllers')}}}": f"1x{minutes}",
        f"tidegate_xds_connected_proxies{{{pod_of(release, 'xds')}}}": f"1x{minutes}",
    }


def ill(release: str, minutes: int) -> dict[str, str]:
    """The series of a release whose processes went after ten minutes, and of a model that answers half of what it is asked."""
    half = {
        name: values
        for name, values in well(release, minutes).items()
        if name.startswith("tidegate_inference")
    }
    for name in well(release, minutes):
        if name.startswith("envoy"):
            half[name] = climbing((minutes, 600 if "rq_total" in name else 300))
        elif not name.startswith("tidegate_inference"):
            half[name] = f"1x10 stale _x{minutes - 11}"
    route = f"access/{SERVED[release]}/ctr/default/grpc"
    unserved = f'envoy_tidegate_refused{{route="{route}",reason="direct_response"}}'
    return {**half, unserved: climbing((minutes, 6))}


EXPECTED: Final = (
    ("TidegateNoLeader", "page", {}),
    ("TidegateXdsDown", "page", {}),
    ("TidegateWebDown", "ticket", {}),
    ("TidegateRouteUnserved", "page", {"route": "access/ads/ctr/default/grpc"}),
    ("TidegateInferenceBudgetBurn", "page", {"namespace": "ads", "inference": "ctr", "window": "1h"}),
    ("TidegateInferenceBudgetBurn", "page", {"namespace": "ads", "inference": "ctr", "window": "6h"}),
)
"""What is wrong with blue."""


def firing(release: str) -> list[dict[str, object]]:
    """All of it, as told by the rules of one release."""
    samples = []
    for name, severity, labels in EXPECTED:
        own: Mapping[str, Any] = {
            "alertname": name,
            "alertstate": "firing",
            "severity": severity,
            "helm_release": f"{release}-system/{release}",
            **labels,
        }
        inside = ", ".join(f'{label}="{value}"' for label, value in sorted(own.items()))
        samples.append({"labels": f"ALERTS{{{inside}}}", "value": 1})
    return samples


def told(*samples: Mapping[str, object]) -> Mapping[str, object]:
    """What fires after an hour; burns over days are those of other tests."""
    return {
        "expr": 'ALERTS{alertstate="firing",window!~".d"}',
        "eval_time": "60m",
        "exp_samples": list(samples),
    }


@pytest.fixture(scope="module")
def both(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """The rules of two releases that serve a namespace each."""
    folder = tmp_path_factory.mktemp("rules")
    return [path for release, each in SERVED.items() for path in rules_of(helm, folder, release, [each])]


def test_promtool_takes_the_rules_of_a_release_of_some_namespaces(
    both: Sequence[Path], promtool: Path
) -> None:
    code, said = asked(promtool, "check", "rules", *map(str, both))
    assert code == 0, said


def test_the_health_of_one_release_hides_no_failure_of_another_and_each_is_told_of_once(
    both: Sequence[Path], promtool: Path, tmp_path: Path
) -> None:
    series = {**ill(BLUE, 60), **well(GREEN, 60)}
    code, said = played(promtool, tmp_path, both, playing(series, told(*firing(BLUE))))
    assert code == 0, said


def test_two_releases_that_are_well_are_quiet(both: Sequence[Path], promtool: Path, tmp_path: Path) -> None:
    series = {**well(BLUE, 60), **well(GREEN, 60)}
    code, said = played(promtool, tmp_path, both, playing(series, told()))
    assert code == 0, said


def test_rules_that_are_about_all_hide_the_failure(helm: Path, promtool: Path, tmp_path: Path) -> None:
    """So that the test above can fail: the file as it is for a cluster with one release."""
    files = Path(__file__).parents[2] / "charts" / "tidegate" / "files"
    rules = [files / f"prometheus-{each}.yaml" for each in ("rules", "alerts")]
    series = {**ill(BLUE, 60), **well(GREEN, 60)}
    code, said = played(promtool, tmp_path, rules, playing(series, told(*firing(BLUE))))
    assert code != 0
    found = said.split("got:")[-1]
    assert "TidegateRouteUnserved" in found
    assert "TidegateNoLeader" not in found


def test_a_release_records_what_it_serves_and_nothing_of_another(
    helm: Path, promtool: Path, tmp_path: Path
) -> None:
    rules = rules_of(helm, tmp_path, GREEN, [SERVED[GREEN]])
    series = {**well(BLUE, 60), **well(GREEN, 60)}
    recorded = (
        "count by (__name__, namespace) ({__name__=~'tidegate:inference_(offered|bad|budget_burn):rate5m'})"
    )
    expected = [
        {"labels": f'{name}{{namespace="shop"}}', "value": 1}
        for name in (
            "tidegate:inference_bad:rate5m",
            "tidegate:inference_budget_burn:rate5m",
            "tidegate:inference_offered:rate5m",
        )
    ]
    question = {"expr": recorded, "eval_time": "60m", "exp_samples": expected}
    code, said = played(promtool, tmp_path, rules, playing(series, question))
    assert code == 0, said


def count_priced(minutes: int) -> dict[str, str]:
    """Series each 15 s: of 35 requests per second for ads/ctr, 10 are answered, 5 by a fallback instead, and 20 are refused.

    A gateway tries one per second again, copies all to a mirror, and refuses one for which no pod is left. Two controllers lead.
    """
    steps = 4 * minutes
    clusters = {"inference/ads/ctr": 165, "inference/ads/small": 75, "shadow/ads/ctr/mirror": 150}
    gateway = 'pod="gateway-0"'
    series = {
        f'envoy_cluster_upstream_rq_total{{{gateway},envoy_cluster_name="{name}/grpc"}}': f"0+{count}x{steps}"
        for name, count in clusters.items()
    }
    ctr = 'envoy_cluster_name="inference/ads/ctr/grpc"'
    series[f"envoy_cluster_upstream_rq_retry{{{gateway},{ctr}}}"] = f"0+15x{steps}"
    series[f'envoy_cluster_upstream_rq_xx{{{gateway},{ctr},envoy_response_code_class="2"}}'] = (
        f"0+150x{steps}"
    )
    for bound in ("25", "+Inf"):
        series[f'envoy_cluster_upstream_rq_time_bucket{{{gateway},{ctr},le="{bound}"}}'] = f"0+150x{steps}"
    refused = 'reason="direct_response",route="access/ads/ctr/default'
    series[f'envoy_tidegate_refused{{{gateway},{refused}/refused-grpc"}}'] = f"0+300x{steps}"
    series[f'envoy_tidegate_refused{{{gateway},{refused}/grpc"}}'] = f"0+15x{steps}"
    # A route may have a name like that of the entry that refuses.
    named = 'reason="direct_response",route="access/ads/ctr/refused-a/grpc"'
    series[f"envoy_tidegate_refused{{{gateway},{named}}}"] = f"0+30x{steps}"
    reduced = 'envoy_virtual_host="access/ads/ctr",envoy_route="default/reduced"'
    series[f"envoy_vhost_route_upstream_rq_completed{{{gateway},{reduced}}}"] = f"0+75x{steps}"
    objective = 'namespace="ads",inference="ctr"'
    series[f"tidegate_inference_slo_objective_ratio{{{objective}}}"] = f"0.99x{steps}"
    series[f'tidegate_inference_slo_bucket_share{{{objective},le="25"}}'] = f"1x{steps}"
    return series


def tell_routes(minutes: int) -> dict[str, str]:
    """Of which Inference a route's requests are; one Prometheus keeps the label `namespace`, the other renames it."""
    routes = (("access/ads/ctr/default", "refused"), ("access/ads/ctr/default/reduced", "reduced"))
    owners = ('pod="a",namespace="ads"', 'pod="b",namespace="tidegate-system",exported_namespace="ads"')
    return {
        f'tidegate_route_demand_ratio{{{owner},route="{route}",outcome="{outcome}",inference="ctr"}}': f"1x{4 * minutes}"
        for route, outcome in routes
        for owner in owners
    }


def expect_rates(series: str, **rates: float) -> Mapping[str, object]:
    samples = [
        {"labels": f'{series}{{inference="{name}", namespace="ads"}}', "value": rate}
        for name, rate in rates.items()
    ]
    return {"expr": series, "eval_time": "30m", "exp_samples": samples}


@pytest.mark.parametrize(
    ("told", "offered", "demand"), [(True, 30, 35), (False, 10, 10)], ids=["told of routes", "untold"]
)
def test_what_the_price_refuses_is_offered_once_and_what_a_fallback_answers_is_demand(
    promtool: Path, tmp_path: Path, told: bool, offered: float, demand: float
) -> None:
    rules = Path(__file__).parents[2] / "charts" / "tidegate" / "files" / "prometheus-rules.yaml"
    series = {**count_priced(30), **(tell_routes(30) if told else {})}
    questions = (
        expect_rates("tidegate:inference_routed:rate1m", ctr=10, small=5),
        expect_rates("tidegate:inference_offered:rate1m", ctr=offered, small=5),
        expect_rates("tidegate:inference_demand:rate1m", ctr=demand, small=5),
        expect_rates("tidegate:inference_offered:rate5m", ctr=offered, small=5),
        {
            "expr": "tidegate:route_unserved:rate1m",
            "eval_time": "30m",
            "exp_samples": [
                {
                    "labels": f'tidegate:route_unserved:rate1m{{route="access/ads/ctr/{route}/grpc"}}',
                    "value": rate,
                }
                for route, rate in (("default", 1), ("refused-a", 2))
            ],
        },
        # What a fallback answered was answered: it burns nobody's budget.
        expect_rates("tidegate:inference_bad:rate5m", ctr=offered - 10),
    )
    code, said = played(promtool, tmp_path, [rules], {**playing(series, *questions), "interval": "15s"})
    assert code == 0, said

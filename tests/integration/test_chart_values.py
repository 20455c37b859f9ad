"""The values of the charts: what each does to the objects, what is refused and with which path, and that the page of values is theirs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fixtures.chart import CHART, CHART_OF_KINDS, PROCESSES, Objects, pod_of, rendered, template
from tidegate.reference.values import parse_values, render_values_page

pytestmark = [pytest.mark.integration]

DIGEST: Final = "sha256:" + "0123456789abcdef" * 4
MONITORS: Final = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def paths(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from paths(value, f"{above}{key}.")


def known(schema: Mapping[str, Any], root: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Every path that a schema names."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    for key, inner in schema.get("properties", {}).items():
        yield f"{above}{key}"
        yield from known(inner, root, f"{above}{key}.")


@pytest.mark.parametrize("chart", [CHART, CHART_OF_KINDS], ids=lambda chart: chart.name)
def test_every_value_is_known_to_the_schema_and_every_one_it_names_is_there(chart: Path) -> None:
    values = yaml.safe_load((chart / "values.yaml").read_text())
    schema = json.loads((chart / "values.schema.json").read_text())
    named, there = set(known(schema, schema)), set(paths(values))
    # Maps of the user's own keys have none in the schema.
    free = {
        path
        for path in there - named
        if any(path.startswith(f"{other}.") for other in named if other in there)
    }
    assert there - named - free == set()
    # What is named and not set: parts of what is empty unless set, and Helm's own `global`.
    empty = {
        path
        for path in there
        if path.rpartition(".")[2] in {"pods", "podDisruptionBudget", "resources", "issuerRef"}
    }
    missing = {path for path in named - there if not any(path.startswith(f"{part}.") for part in empty)}
    assert missing == {"global"} & named


def said_at(helm: Path, values: Mapping[str, object], chart: Path = CHART) -> Mapping[str, str]:
    """What Helm says of wrong values, by their paths: it names them all in one run."""
    done = template(helm, values, chart)
    assert done.returncode != 0
    found: dict[str, str] = {}
    for line in done.stderr.splitlines():
        at, colon, said = line.strip().removeprefix("- at '").partition("': ")
        if colon:
            found[at] = f"{found.get(at, '')} {said}"
    return found


WRONG: Final = (
    ({"replicas": 3}, "", "additional properties 'replicas' not allowed"),
    ({"controllers.replica": 3}, "/controllers", "additional properties 'replica' not allowed"),
    ({"controllers.replicas": "3"}, "/controllers/replicas", "got string, want integer"),
    ({"images.operator": "Tide Gate"}, "/images/operator", "does not match pattern"),
    ({"images.gateway": "tidegate@sha256:123"}, "/images/gateway", "does not match pattern"),
    ({"images.pullSecrets": ["registry"]}, "/images/pullSecrets/0", "got string, want object"),
    ({"crds.keep": "yes"}, "/crds/keep", "got string, want boolean"),
    ({"watchNamespaces": ["Ads"]}, "/watchNamespaces/0", "does not match pattern"),
    ({"gateway.pods.tolerations": [{"keys": "a"}]}, "/gateway/pods/tolerations/0", "'keys' not allowed"),
    ({"xds.pods.affinty": {}}, "/xds/pods", "'affinty' not allowed"),
    ({"web.resources.limits": {"memory": "lots"}}, "/web/resources/limits/memory", "pattern"),
    ({"xds.podDisruptionBudget.minAvailable": 1}, "/xds/podDisruptionBudget", "'not' failed"),
    ({"commonLabels": {"team": "a b"}}, "/commonLabels/team", "does not match pattern"),
    ({"priorityClasses.realtime": 2000000000}, "/priorityClasses/realtime", "maximum"),
    ({"networkPolicy.clients": [{"namespace": "ads"}]}, "/networkPolicy/clients/0", "'namespace' not"),
    ({"metrics.podMonitor.interval": "often"}, "/metrics/podMonitor/interval", "pattern"),
    ({"log.level": "loud"}, "/log/level", "must be one of"),
    ({"tls.existing.xds": "No Name"}, "/tls/existing/xds", "does not match pattern"),
    ({"tls.existing.controller": "a"}, "/tls/existing", "'controller' not allowed"),
    ({"tls.certManager.issuer": "c"}, "/tls/certManager", "'issuer' not allowed"),
    ({"tls.xds": "yes"}, "/tls/xds", "got string, want boolean"),
    ({"auth.jwks.allowedHosts": ["https://a.example.com"]}, "/auth/jwks/allowedHosts/0", "pattern"),
    ({"telemetry.otlp.endpoint": "collector:4318"}, "/telemetry/otlp/endpoint", "pattern"),
)


def test_what_is_unknown_or_wrong_is_refused_with_its_path(helm: Path) -> None:
    found = said_at(helm, {path: value for values, _, _ in WRONG for path, value in values.items()})
    assert [(values, at) for values, at, said in WRONG if said not in found.get(at, "")] == []


def test_crds_are_templates() -> None:
    assert not (CHART / "crds").exists(), "Helm would never upgrade what lies there"


def test_the_crd_chart_without_what_it_links_to_is_refused(helm: Path, tmp_path: Path) -> None:
    """Flux makes its archive of a Git repository without links."""
    chart = tmp_path / CHART_OF_KINDS.name
    shutil.copytree(CHART_OF_KINDS, chart, ignore=lambda *_: ["files", "_crds.tpl"])
    done = template(helm, chart=chart)
    assert done.returncode != 0
    assert "files/crds is a link that was not followed" in done.stderr


@pytest.mark.parametrize(
    ("chart", "above"), [(CHART, "crds."), (CHART_OF_KINDS, "")], ids=["tidegate", "tidegate-crds"]
)
def test_either_chart_brings_the_same_kinds(helm: Path, chart: Path, above: str) -> None:
    def kinds(**values: object) -> dict[str, Mapping[str, Any]]:
        found = rendered(helm, {f"{above}{key}": value for key, value in values.items()}, chart)
        return {name: body for (kind, name), body in found.items() if kind == "CustomResourceDefinition"}

    committed = [yaml.safe_load(path.read_text()) for path in (CHART.parents[1] / "crds").glob("*.yaml")]
    kept = kinds()
    assert {name: body["spec"] for name, body in kept.items()} == {
        body["metadata"]["name"]: body["spec"] for body in committed
    }
    policy = "helm.sh/resource-policy"
    assert all(body["metadata"]["annotations"] == {policy: "keep"} for body in kept.values())
    # The selector by which everybody finds them, this project's tests among others.
    assert all(body["metadata"]["labels"]["app.kubernetes.io/name"] == "tidegate" for body in kept.values())
    assert all(not body["metadata"]["annotations"] for body in kinds(keep=False).values())


def test_kinds_of_another_release_are_left_to_it(helm: Path) -> None:
    without = rendered(helm, {"crds.enabled": False})
    assert {kind for kind, _ in rendered(helm).keys() - without.keys()} == {"CustomResourceDefinition"}


def before(section: str) -> dict[str, object]:
    """Values of a release that did not have this section, and that somebody turns on now."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for part in section.split("."):
        values = values[part]
    return {f"{section}.{key}": None for key in values} | {f"{section}.enabled": True}


@pytest.mark.parametrize(
    "sections",
    [
        ("networkPolicy", "nodeAgent", "grafana.dashboards", "metrics.podMonitor"),
        ("metrics.serviceMonitor", "metrics.rules"),  # of both monitors there is one
    ],
    ids=" ".join,
)
def test_what_an_earlier_release_did_not_have_is_turned_on_by_one_value(
    helm: Path, sections: Sequence[str]
) -> None:
    """`helm upgrade --reuse-values --set <section>.enabled=true` brings nothing else of it along."""
    earlier = {path: value for section in sections for path, value in before(section).items()}
    turned_on = {f"{section}.enabled": True for section in sections}
    assert _comparable(rendered(helm, earlier)) == _comparable(rendered(helm, turned_on))


def test_values_that_are_missing_are_those_of_the_chart(helm: Path) -> None:
    """But for the kinds, which belong to nobody where an earlier release did not bring them."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    # A section, or a value beside the sections.
    parts = {path for path in paths(values) if path.count(".") == 1}
    alone = {path for path in values if not any(part.startswith(f"{path}.") for part in parts)}
    needed = ("crds.", "images.")
    missing = dict.fromkeys(sorted(path for path in parts | alone if not path.startswith(needed)))
    assert len(missing) > 60
    whole = dict.fromkeys(section for section in values if section not in {"crds", "images"})
    for earlier in (missing, whole):
        assert _comparable(rendered(helm, earlier)) == _comparable(rendered(helm))
    assert not [kind for kind, _ in rendered(helm, {"crds": None}) if kind == "CustomResourceDefinition"]


def test_what_is_taken_away_on_purpose_stays_away(helm: Path) -> None:
    values = {
        "web.resources.limits": None,
        "nodeAgent.nodeSelector": {"nvidia.com/mps.capable": None, "gpu": "yes"},
    }
    objects = rendered(helm, {**values, "nodeAgent.enabled": True})
    assert set(pod_of(objects, "web")["spec"]["containers"][0]["resources"]) == {"requests"}
    assert pod_of(objects, "node-agent", "DaemonSet")["spec"]["nodeSelector"] == {"gpu": "yes"}


@pytest.mark.parametrize("path", sorted((CHART / "templates").rglob("*.*")), ids=lambda path: path.name)
def test_every_template_first_puts_in_what_values_lack(path: Path) -> None:
    text = path.read_text()
    # The kinds are those of the release alone that says so.
    if path.suffix != ".tpl" and path.name != "crds.yaml" and ".Values" in text:
        assert text.startswith('{{- include "tidegate.complete" . -}}\n')


def _comparable(objects: Objects) -> dict[tuple[str, str], object]:
    """Keys and certificates are others each time."""
    return {key: body for key, body in objects.items() if key[0] != "Secret"}


RESERVED: Final = (
    *(f"app.kubernetes.io/{each}" for each in ("name", "instance", "component", "managed-by")),
    "rbac.authorization.k8s.io/aggregate-to-view",
)


LABELS: Final = {
    "commonLabels": RESERVED,
    "pods.labels": RESERVED[:1],
    "gateway.pods.labels": RESERVED[1:2],
    "metrics.serviceMonitor.additionalLabels": RESERVED[:1],
    "metrics.podMonitor.additionalLabels": RESERVED[1:2],
    "metrics.rules.labels": RESERVED[:1],
    "grafana.dashboards.labels": RESERVED[:1],
}


@pytest.mark.parametrize(
    ("chart", "labels"),
    [(CHART, LABELS), (CHART_OF_KINDS, {"commonLabels": RESERVED})],
    ids=["tidegate", "tidegate-crds"],
)
def test_labels_by_which_things_are_found_cannot_be_given(
    helm: Path, chart: Path, labels: Mapping[str, Sequence[str]]
) -> None:
    found = said_at(helm, {path: dict.fromkeys(names, "mine") for path, names in labels.items()}, chart)
    wanted = {
        f"/{path.replace('.', '/')}/{name.replace('/', '~1')}"
        for path, names in labels.items()
        for name in names
    }
    assert wanted <= found.keys()


def test_nothing_becomes_a_hook_by_an_annotation_for_all(helm: Path) -> None:
    """Helm takes no hook back when the release goes."""
    assert "/commonAnnotations/helm.sh~1hook" in said_at(
        helm, {"commonAnnotations": {"helm.sh/hook": "pre-install"}}
    )


SAME: Final = {
    "commonLabels": {
        "helm.sh/chart": "ours",
        "grafana_dashboard": "0",
        "release": "common",
        "tier": "common",
    },
    "commonAnnotations": {
        "prometheus.io/port": "1",
        "tidegate.io/config": "mine",
        "grafana_folder": "common",
        "mesh": "common",
    },
    "pods.labels": {"tier": "pods", "release": "pods"},
    "pods.annotations": {"prometheus.io/port": "2", "mesh": "pods"},
    "gateway.pods.annotations": {"prometheus.io/scrape": "false"},
    "metrics.podMonitor.additionalLabels": {"release": "prometheus"},
    "metrics.rules": {"enabled": True, "labels": {"release": "prometheus"}},
    "grafana.dashboards.enabled": True,
    "nodeAgent.enabled": True,
}


def test_of_the_same_key_the_more_special_one_is_there_and_there_once(helm: Path) -> None:
    objects = each_key_once(template(helm, SAME).stdout)
    web, gateway = (pod_of(objects, name)["metadata"] for name in ("web", "gateway"))
    assert (web["labels"]["tier"], web["labels"]["release"]) == ("pods", "pods")
    assert web["annotations"] == {
        **SAME["commonAnnotations"],
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": "2",
        "mesh": "pods",
    }
    assert gateway["annotations"]["prometheus.io/scrape"] == "false"
    assert gateway["annotations"]["prometheus.io/port"] == "1", (
        "a process's own take the place of those for all"
    )
    assert gateway["annotations"]["tidegate.io/config"] != "mine"
    agent = pod_of(objects, "node-agent", "DaemonSet")["metadata"]
    assert (agent["labels"]["tier"], agent["annotations"]["mesh"]) == ("common", "common")
    test = objects["Pod", "tidegate-test-ready"]["metadata"]["annotations"]
    assert (test["helm.sh/hook"], test["mesh"]) == ("test", "pods")
    assert objects["Service", "tidegate-web"]["metadata"]["labels"]["helm.sh/chart"] == "ours"
    rules = objects["PrometheusRule", "tidegate-alerts"]["metadata"]["labels"]
    assert (rules["release"], rules["tier"]) == ("prometheus", "common")
    dashboard = objects["ConfigMap", "tidegate-dashboard-fleet"]["metadata"]
    assert dashboard["labels"]["grafana_dashboard"] == "1"
    assert dashboard["annotations"]["grafana_folder"] == "Tidegate"
    monitors = each_key_once(template(helm, {**SAME, "metrics.podMonitor.enabled": True}).stdout)
    assert monitors["PodMonitor", "tidegate"]["metadata"]["labels"]["release"] == "prometheus"


class Strict(yaml.SafeLoader):
    """Refuses a map that has a key twice, where others take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"twice in {node.start_mark}: {sorted(keys)}"
        return super().construct_mapping(node, deep)


def each_key_once(text: str) -> Objects:
    """Objects by kind and name; fails where a map has a key twice."""
    found = [each for each in yaml.load_all(text, Strict) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


COMMON: Final = {"commonLabels": {"team": "ads"}, "commonAnnotations": {"contact": "ads@example.com"}}


def test_common_labels_and_annotations_are_on_every_object_and_every_pod(helm: Path) -> None:
    values = {
        **COMMON,
        "nodeAgent.enabled": True,
        "networkPolicy.enabled": True,
        "metrics.podMonitor.enabled": True,
        "metrics.rules.enabled": True,
        "grafana.dashboards.enabled": True,
        "auth.namespaces": ["ads"],
        "gateway.tls.secrets": ["front"],
        "web.auth": {"mode": "proxy", "proxySecret": "front"},
    }
    objects = {**rendered(helm, values), **rendered(helm, {"metrics.serviceMonitor.enabled": True, **COMMON})}
    pods = [
        body["spec"]["template"] for (kind, _), body in objects.items() if kind in {"Deployment", "DaemonSet"}
    ]
    assert len(pods) == 5
    for body in (*objects.values(), *pods):
        what = body.get("kind", "a pod"), body["metadata"].get("name")
        assert body["metadata"]["labels"]["team"] == "ads", what
        assert body["metadata"]["annotations"]["contact"] == "ads@example.com", what
    selectors = [body["spec"]["selector"] for (kind, _), body in objects.items() if kind == "Deployment"]
    assert all("team" not in selector["matchLabels"] for selector in selectors), "they could never be changed"


def test_pods_go_where_they_are_told_and_a_process_may_be_told_otherwise(helm: Path) -> None:
    zone = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}
    values = {
        "pods.nodeSelector": {"pool": "system"},
        "pods.tolerations": [{"key": "system", "operator": "Exists"}],
        "pods.affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "pods.labels": {"tier": "control"},
        "pods.annotations": {"mesh": "out"},
        "pods.priorityClassName": "important",
        "gateway.pods": {"nodeSelector": {"pool": "edge"}, "tolerations": [], "priorityClassName": "edge"},
        "xds.pods.topologySpreadConstraints": [zone],
    }
    objects = rendered(helm, values)
    gateway, xds = (pod_of(objects, name)["spec"] for name in ("gateway", "xds"))
    assert (gateway["nodeSelector"], gateway["priorityClassName"]) == ({"pool": "edge"}, "edge")
    assert "tolerations" not in gateway
    assert (xds["nodeSelector"], xds["priorityClassName"]) == ({"pool": "system"}, "important")
    assert xds["tolerations"] == values["pods.tolerations"]
    assert xds["affinity"] == values["pods.affinity"]
    (spread,) = xds["topologySpreadConstraints"]
    assert spread.items() >= zone.items()
    for process in PROCESSES:
        pod = pod_of(objects, process)
        assert pod["metadata"]["labels"]["tier"] == "control"
        assert pod["metadata"]["annotations"]["mesh"] == "out"
        assert pod["metadata"]["annotations"]["prometheus.io/scrape"] == "true"
        for constraint in pod["spec"]["topologySpreadConstraints"]:
            assert constraint["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == process


def test_nobody_else_has_the_class_of_the_release_unless_they_may(helm: Path) -> None:
    policy = ("ValidatingAdmissionPolicy", "tidegate-control-plane-class")
    assert policy in rendered(helm)
    assert policy not in rendered(helm, {"priorityClasses.guardControlPlane": False})


def test_labels_of_ours_are_guarded_unless_they_need_not_be(helm: Path) -> None:
    policy = ("ValidatingAdmissionPolicy", "tidegate-label-bounds")
    assert policy in rendered(helm)
    assert policy not in rendered(helm, {"labelBounds.enabled": False})


def test_no_model_pushes_a_process_of_the_release_from_its_node(helm: Path) -> None:
    objects = rendered(helm)
    classes = {name: body["value"] for (kind, name), body in objects.items() if kind == "PriorityClass"}
    own = {pod_of(objects, process)["spec"]["priorityClassName"] for process in PROCESSES}
    assert own == {"tidegate-control-plane"}
    assert max(classes, key=lambda name: classes[name]) == "tidegate-control-plane"
    before = rendered(helm, {"priorityClasses": {"realtime": 5, "nearline": 4, "offline": 3}})
    assert ("PriorityClass", "tidegate-control-plane") in before, "values of an earlier release name three"


def test_each_process_keeps_most_of_its_pods_while_nodes_are_drained(helm: Path) -> None:
    values = {
        "web.podDisruptionBudget": {"maxUnavailable": None},
        "xds.podDisruptionBudget": {"maxUnavailable": None, "minAvailable": "50%"},
    }
    budgets = {
        name: body["spec"]
        for (kind, name), body in rendered(helm, values).items()
        if kind == "PodDisruptionBudget"
    }
    assert set(budgets) == {"tidegate-controllers", "tidegate-xds", "tidegate-gateway"}
    assert budgets["tidegate-xds"]["minAvailable"] == "50%"
    assert "maxUnavailable" not in budgets["tidegate-xds"]
    assert budgets["tidegate-gateway"]["maxUnavailable"] == 1
    for name, budget in budgets.items():
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert budget["selector"]["matchLabels"]["app.kubernetes.io/component"] == name.removeprefix(
            "tidegate-"
        )


def test_images_by_digest_and_their_secrets_reach_every_pod(helm: Path) -> None:
    images = {
        name: f"registry.example.com:5000/tidegate/{name}:0.1.0@{DIGEST}"
        for name in ("operator", "dataplane", "triton", "gateway")
    }
    values = {
        **{f"images.{name}": ref for name, ref in images.items()},
        "images.pullSecrets": [{"name": "registry"}],
        "nodeAgent.enabled": True,
    }
    objects = rendered(helm, values)
    specs = {process: pod_of(objects, process)["spec"] for process in PROCESSES}
    specs["node-agent"] = pod_of(objects, "node-agent", "DaemonSet")["spec"]
    specs["test"] = objects["Pod", "tidegate-test-ready"]["spec"]
    for process, spec in specs.items():
        image = {"gateway": images["gateway"], "node-agent": images["dataplane"]}.get(
            process, images["operator"]
        )
        assert [each["image"] for each in spec["containers"]] == [image]
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
    told = {each["name"]: each.get("value") for each in specs["controllers"]["containers"][0]["env"]}
    assert (told["TIDEGATE_DATAPLANE_IMAGE"], told["TIDEGATE_TRITON_IMAGE"]) == (
        images["dataplane"],
        images["triton"],
    )


def test_objects_of_ones_own_come_as_objects_or_text_and_know_the_release(helm: Path) -> None:
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-a"}}
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{ .Release.Name }}-b\n"
    added = rendered(helm, {"extraObjects": [plain, text]}).keys() - rendered(helm).keys()
    assert added == {("ConfigMap", "tidegate-a"), ("ConfigMap", "tidegate-b")}


def test_monitors_name_ports_that_pods_and_services_have(helm: Path) -> None:
    assert not MONITORS & {kind for kind, _ in rendered(helm)}
    labels = {"release": "prometheus"}
    services_found = {"metrics.serviceMonitor": {"enabled": True, "additionalLabels": labels}}
    pods_found = {"metrics.podMonitor": {"enabled": True, "additionalLabels": labels, "interval": "15s"}}
    both = template(helm, {**services_found, **pods_found})
    assert "all metrics would count twice" in both.stderr
    objects = {**rendered(helm, services_found), **rendered(helm, pods_found)}
    monitors = {key: body for key, body in objects.items() if key[0] in MONITORS}
    assert set(monitors) == {
        ("ServiceMonitor", "tidegate"),
        ("PodMonitor", "tidegate"),
        ("PodMonitor", "tidegate-models"),
    }
    assert all(body["metadata"]["labels"]["release"] == "prometheus" for body in monitors.values())
    services = [body for (kind, _), body in objects.items() if kind == "Service"]
    for process in PROCESSES:
        pod = pod_of(objects, process)
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        scraped = {each["port"] for each in monitors["PodMonitor", "tidegate"]["spec"]["podMetricsEndpoints"]}
        assert len(scraped & ports) == 1, f"{process} is scraped once"
        found = [
            port["targetPort"]
            for service in services
            if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
            for port in service["spec"]["ports"]
            if port["name"]
            in {each["port"] for each in monitors["ServiceMonitor", "tidegate"]["spec"]["endpoints"]}
        ]
        assert len(found) == 1, f"{process} is found by one Service"
        assert set(found) <= ports
    some = rendered(helm, {**pods_found, "watchNamespaces": ["ads"]})
    assert some["PodMonitor", "tidegate-models"]["spec"]["namespaceSelector"] == {"matchNames": ["ads"]}


SCRAPED: Final = ("controllers", "xds", "web", "gateway", "node-agent")


@pytest.mark.parametrize(
    ("monitor", "annotated"),
    [
        ("", set(SCRAPED)),
        ("metrics.serviceMonitor.enabled", {"node-agent"}),
        ("metrics.podMonitor.enabled", set[str]()),
    ],
    ids=["none", "ServiceMonitor", "PodMonitor"],
)
def test_what_a_monitor_finds_is_not_found_by_annotations_too(
    helm: Path, monitor: str, annotated: set[str]
) -> None:
    objects = rendered(helm, {"nodeAgent.enabled": True, **({monitor: True} if monitor else {})})
    pods = {each: pod_of(objects, each) for each in PROCESSES}
    pods["node-agent"] = pod_of(objects, "node-agent", "DaemonSet")
    assert set(pods) == set(SCRAPED)
    asked = {
        name
        for name, pod in pods.items()
        if "prometheus.io/scrape" in (pod["metadata"].get("annotations") or {})
    }
    assert asked == annotated


PROXY: Final = {"mode": "proxy", "proxySecret": "front"}


@pytest.mark.parametrize("named", [{}, {"groups": ["sre"]}, {"users": ["ann"]}], ids=json.dumps)
def test_a_release_of_some_namespaces_names_whom_its_proxy_may_name(
    helm: Path, named: dict[str, object]
) -> None:
    refused = template(helm, {"watchNamespaces": ["ads"], "web.auth": {**PROXY, **named}})
    assert refused.returncode != 0
    assert "needs both web.auth.users and web.auth.groups" in refused.stderr
    rules = rendered(helm, {"web.auth": {**PROXY, **named}})["ClusterRole", "tidegate-web-impersonates"][
        "rules"
    ]
    bounded = {resource for rule in rules if "resourceNames" in rule for resource in rule["resources"]}
    assert bounded == named.keys(), "where the release serves all namespaces, only what is named is bounded"


def test_the_dashboard_may_act_as_those_alone_who_are_named(helm: Path) -> None:
    values = {"watchNamespaces": ["ads"], "web.auth": {**PROXY, "users": ["ann"], "groups": ["sre"]}}
    objects = rendered(helm, values)
    rules = objects["ClusterRole", "tidegate-web-impersonates"]["rules"]
    assert {tuple(rule["resources"]): rule["resourceNames"] for rule in rules} == {
        ("users",): ["ann"],
        ("groups",): ["sre", "system:authenticated"],
    }
    told = {
        each["name"]: each.get("value") for each in pod_of(objects, "web")["spec"]["containers"][0]["env"]
    }
    assert (told["TIDEGATE_WEB_PROXY_USERS"], told["TIDEGATE_WEB_PROXY_GROUPS"]) == ('["ann"]', '["sre"]')
    assert not [name for kind, name in rendered(helm) if name.endswith("impersonates")]


def test_a_release_of_some_namespaces_gets_no_rights_to_nodes(helm: Path) -> None:
    refused = template(helm, {"nodeAgent.enabled": True, "watchNamespaces": ["ads"]})
    assert refused.returncode != 0
    assert "nodeAgent.enabled needs a release that serves all namespaces" in refused.stderr


def test_a_release_of_some_namespaces_has_its_rights_there_alone(helm: Path) -> None:
    objects = rendered(helm, {"watchNamespaces": ["ads", "shop"], "rbac.aggregateClusterRoles": False})
    bound = {name for kind, name in objects if kind == "ClusterRoleBinding"}
    assert bound == {"tidegate-web"}
    (rule,) = objects["ClusterRole", "tidegate-web"]["rules"]
    assert rule["resources"] == ["tokenreviews"]
    for process in ("controllers", "xds", "web"):
        role = objects["Role", f"tidegate-{process}-objects"]
        assert not {"nodes", "computepools", "tokenreviews"} & {
            one for rule in role["rules"] for one in rule["resources"]
        }
        told = {
            each["name"]: each.get("value")
            for each in pod_of(objects, process)["spec"]["containers"][0]["env"]
        }
        assert json.loads(told["TIDEGATE_WATCH_NAMESPACES"] or "") == ["ads", "shop"]
    everywhere = {name for kind, name in rendered(helm) if kind == "ClusterRoleBinding"}
    assert everywhere == {"tidegate-controllers", "tidegate-xds", "tidegate-web"}


def test_the_page_says_of_each_value_what_stands_above_it() -> None:
    text = '# Who.\nowner: ""\n\npart:\n  # How\n  # many.\n  count: 2\n  rest: {a: 1}\nlist:\n- {b: 2}\n'
    found = {each.path: (each.default, each.comment) for each in parse_values(text)}
    assert found == {
        "owner": ("''", "Who."),
        "part.count": ("2", "How many."),
        "part.rest": ("{a: 1}", ""),
        "list": ("[{b: 2}]", ""),
    }
    assert "| `part.count` | `2` | How many. |" in render_values_page({"chart": text})
    with pytest.raises(ValueError, match="no key two spaces below another"):
        parse_values("part:\n      deep: 1\n")

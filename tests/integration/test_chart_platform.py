"""Values that platform teams set: names, images, Services, security contexts, HPA, Ingress; and the chart's own description."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from fixtures.chart import CHART, CHART_OF_KINDS, PROCESSES, Objects, pod_of, rendered, settings_of, template
from fixtures.go_programs import go_program
from tidegate.api.inference import Inference, Tier
from tidegate.reference.values import describe_schema, parse_values, render_chart_readme

pytestmark = [pytest.mark.integration]

DIGEST: Final = "sha256:" + "0123456789abcdef" * 4
_ALL: Final[Mapping[str, object]] = {
    "fullnameOverride": "edge",
    "images.registry": "registry.example.com/tidegate",
    "pods.securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
    "pods.extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "gateway.autoscaling.enabled": True,
    "gateway.tls.secrets": ["front"],
    "web.hosts": ["tidegate.example.com"],
    "web.ingress.enabled": True,
    "web.httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]},
    "prometheus.url": "http://prometheus:9090",
    "networkPolicy.enabled": True,
    "nodeAgent.enabled": True,
    "metrics.podMonitor.enabled": True,
    "metrics.rules.enabled": True,
    "grafana.dashboards.enabled": True,
}
"""Every switch that adds objects, and the values of this module."""


def env_of(objects: Objects, process: str, release: str = "tidegate") -> Mapping[str, Any]:
    """The environment of a process by name."""
    containers = objects["Deployment", f"{release}-{process}"]["spec"]["template"]["spec"]["containers"]
    return {variable["name"]: variable.get("value") for variable in containers[0]["env"]}


def run_helm(helm: Path, *arguments: str | Path, **environment: str) -> str:
    command = [helm, *arguments]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def render_text(helm: Path, values: Mapping[str, object]) -> str:
    """Helm's own output; a Helm that was built without the flags of its releases takes Kubernetes to be 1.20."""
    arguments = ("template", "tidegate", CHART, "--namespace=s", "--kube-version=1.33.0")
    return run_helm(helm, *arguments, *settings_of(values))


@pytest.mark.parametrize("values", [{}, _ALL], ids=["defaults", "all"])
def test_every_rendering_is_byte_equal_in_helm_3_and_4(helm: Path, values: Mapping[str, object]) -> None:
    first = render_text(helm, values)
    assert render_text(helm, values) == first
    assert render_text(go_program("helm3"), values) == first


@pytest.mark.parametrize("chart", [CHART, CHART_OF_KINDS], ids=lambda chart: chart.name)
def test_lint_of_both_helms_has_nothing_to_say(helm: Path, chart: Path) -> None:
    for binary in (helm, go_program("helm3")):
        found = run_helm(binary, "lint", "--strict", chart)
        assert "1 chart(s) linted, 0 chart(s) failed" in found
        assert "[WARNING]" not in found


@pytest.mark.parametrize("chart", [CHART, CHART_OF_KINDS], ids=lambda chart: chart.name)
def test_readme_and_schema_have_the_comment_of_every_value(chart: Path) -> None:
    text = (chart / "values.yaml").read_text()
    schema = json.loads((chart / "values.schema.json").read_text())
    values = parse_values(text)
    assert [value.path for value in values if not value.comment] == []
    assert describe_schema(schema, text) == schema
    # A default that is a map in one line is one value: its parts share the schema of a value that lists them.
    undescribed = [path for path, node in walk_schema(schema, schema) if "description" not in node]
    known = {value.path for value in values}
    assert [path for path in undescribed if path in known] == []
    about = yaml.safe_load((chart / "Chart.yaml").read_text())["description"]
    assert (chart / "README.md").read_text() == render_chart_readme(chart.name, about, text)


def walk_schema(
    schema: Mapping[str, Any], root: Mapping[str, Any], above: str = ""
) -> list[tuple[str, Mapping[str, Any]]]:
    """The path and the schema of every property."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    found: list[tuple[str, Mapping[str, Any]]] = []
    for key, inner in schema.get("properties", {}).items():
        found += [(f"{above}{key}", inner), *walk_schema(inner, root, f"{above}{key}.")]
    return found


def test_a_shared_schema_has_the_comment_of_the_first_value_that_has_one() -> None:
    schema = {
        "properties": {
            "size": {"$ref": "#/$defs/size", "description": "old"},
            "other": {"$ref": "#/$defs/size"},
        },
        "$defs": {"size": {"properties": {"cpu": {"type": "string"}}}},
    }
    text = "# How big.\nsize:\n  # Cores.\n  cpu: 1\nother:\n  # More cores.\n  cpu: 2\n  mine: {a: 1}\n"
    described = describe_schema(schema, text)
    assert described["properties"]["size"]["description"] == "How big."
    assert "description" not in described["properties"]["other"]
    assert described["$defs"]["size"]["properties"]["cpu"] == {"description": "Cores.", "type": "string"}


def test_names_have_the_override_and_the_processes_know_it(helm: Path) -> None:
    objects = rendered(helm, {"fullnameOverride": "edge", "nodeAgent.enabled": True})
    names = {name for kind, name in objects if kind != "CustomResourceDefinition"}
    assert {name for name in names if not name.startswith("edge-")} == set()
    env = env_of(objects, "controllers", "edge")
    assert (env["TIDEGATE_RELEASE"], env["TIDEGATE_PRIORITY_CLASS_PREFIX"]) == ("edge", "edge-")
    pod = objects["Deployment", "edge-gateway"]["spec"]["template"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/instance"] == "edge"
    assert pod["spec"]["serviceAccountName"] == "edge-gateway"
    assert ("ServiceAccount", "edge-gateway") in objects


def test_names_of_services_and_labels_are_cut(helm: Path) -> None:
    release = "r" * 46 + "-" + "e" * 6
    assert len(release) == 53, "the longest name that Helm admits"
    objects = rendered(helm, {"gateway.tls.secrets": ["front"]}, release=release)
    services = {name for kind, name in objects if kind == "Service"}
    assert services == {
        f"{'r' * 46}-{name}"
        for name in ("gateway", "gateway-tls", "gateway-metrics", "web", "web-metrics", "xds", "controllers")
    }
    assert max(map(len, services)) <= 63
    for body in objects.values():
        assert all(len(value) <= 63 for value in body["metadata"].get("labels", {}).values())


IMAGES: Final = (
    ({}, "tidegate.local/gateway:0.1.0"),
    ({"images.registry": "mirror.example.com:5000/tg"}, "mirror.example.com:5000/tg/gateway:0.1.0"),
    ({"images.registry": "", "images.gateway.repository": "docker.io/a/envoy"}, "docker.io/a/envoy:0.1.0"),
    ({"images.gateway.tag": "1.2"}, "tidegate.local/gateway:1.2"),
    ({"images.gateway.digest": DIGEST}, f"tidegate.local/gateway@{DIGEST}"),
    ({"images.gateway.tag": "1.2", "images.gateway.digest": DIGEST}, f"tidegate.local/gateway:1.2@{DIGEST}"),
    ({"images.gateway": "whole.example.com/envoy:3"}, "whole.example.com/envoy:3"),
)


@pytest.mark.parametrize(
    ("values", "reference"), IMAGES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_image_has_its_fields(helm: Path, values: Mapping[str, object], reference: str) -> None:
    (container,) = pod_of(rendered(helm, values), "gateway")["spec"]["containers"]
    assert container["image"] == reference


def test_services_have_what_a_cloud_needs(helm: Path) -> None:
    service: dict[str, Any] = {
        "type": "LoadBalancer",
        "port": 443,
        "annotations": {"lb.example.com/scheme": "internal", "team": "edge"},
        "loadBalancerClass": "example.com/nlb",
        "loadBalancerSourceRanges": ["192.0.2.0/24"],
        "externalTrafficPolicy": "Local",
        "ipFamilyPolicy": "PreferDualStack",
    }
    parts = ("gateway.service", "gateway.tls.service", "web.service")
    values: dict[str, Any] = {
        **dict.fromkeys(parts, service),
        "gateway.tls.secrets": ["front"],
        "commonAnnotations": {"team": "all", "contact": "ads"},
    }
    objects = rendered(helm, values)
    wanted = {key: value for key, value in service.items() if key not in {"annotations", "port"}}
    for name in ("gateway", "gateway-tls", "web"):
        body = objects["Service", f"tidegate-{name}"]
        assert body["metadata"]["annotations"] == {**service["annotations"], "contact": "ads"}
        assert body["spec"]["ports"][0]["port"] == 443
        assert {key: body["spec"].get(key) for key in wanted} == wanted
    plain = rendered(helm)["Service", "tidegate-gateway"]
    assert plain["spec"].keys() == {"type", "selector", "ports"}
    assert "annotations" not in plain["metadata"]
    refused = template(helm, {"gateway.service.externalTrafficPolicy": "Near"})
    assert "/gateway/service/externalTrafficPolicy" in refused.stderr


OPENSHIFT: Final = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}


def test_the_users_of_pods_can_be_left_to_openshift(helm: Path) -> None:
    objects = rendered(helm, {"pods.securityContext": OPENSHIFT, "models.securityContext": OPENSHIFT})
    pods = [pod_of(objects, process)["spec"] for process in PROCESSES]
    for spec in (*pods, objects["Pod", "tidegate-test-ready"]["spec"]):
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert json.loads(env_of(objects, "controllers")["TIDEGATE_POD_SECURITY_CONTEXT"]) == {}
    default = rendered(helm)
    assert pod_of(default, "web")["spec"]["securityContext"]["runAsUser"] == 65532
    assert json.loads(env_of(default, "controllers")["TIDEGATE_POD_SECURITY_CONTEXT"])["fsGroup"] == 65532
    own = rendered(helm, {"gateway.pods.containerSecurityContext": {"readOnlyRootFilesystem": False}})
    containers = [pod_of(own, name)["spec"]["containers"][0] for name in ("gateway", "xds")]
    assert [one["securityContext"]["readOnlyRootFilesystem"] for one in containers] == [False, True]


def test_pods_get_variables_volumes_and_arguments_of_ones_own(helm: Path) -> None:
    values: dict[str, Any] = {
        "pods.extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "pods.volumes": [{"name": "ca", "configMap": {"name": "company-ca"}}],
        "pods.volumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/company"}],
        "controllers.pods.extraEnv": [{"name": "TIDEGATE_WORKERS", "value": "16"}],
        "gateway.extraArgs": ["--component-log-level", "upstream:debug"],
    }
    objects = rendered(helm, values)
    for process in PROCESSES:
        spec = pod_of(objects, process)["spec"]
        assert values["pods.volumes"][0] in spec["volumes"]
        assert values["pods.volumeMounts"][0] in spec["containers"][0]["volumeMounts"]
        assert ("HTTPS_PROXY" in env_of(objects, process)) is (process != "controllers")
    assert env_of(objects, "controllers")["TIDEGATE_WORKERS"] == "16"
    assert pod_of(objects, "gateway")["spec"]["containers"][0]["args"][-2:] == values["gateway.extraArgs"]
    refused = template(helm, {"pods.extraEnv": [{"name": "TIDEGATE_RELEASE", "value": "other"}]})
    assert "the chart itself sets TIDEGATE_RELEASE" in refused.stderr


def test_node_agents_get_what_their_own_pods_name_and_nothing_of_the_others(helm: Path) -> None:
    proxy, settings = {"name": "HTTPS_PROXY", "value": "http://proxy"}, {"name": "LANG", "value": "C"}
    volume, mount = {"name": "ca", "configMap": {"name": "ca"}}, {"name": "ca", "mountPath": "/ca"}
    own = {"extraEnv": [settings], "volumes": [volume], "volumeMounts": [mount], "labels": {"team": "gpu"}}
    others = {"pods.extraEnv": [proxy], "pods.labels": {"team": "web"}, "nodeAgent.enabled": True}

    def agent(**pods: Any) -> Any:
        return pod_of(rendered(helm, {**others, "nodeAgent.pods": pods}), "node-agent", "DaemonSet")

    plain, changed = agent(), agent(**own, containerSecurityContext={"privileged": True})
    (before,), (after,) = plain["spec"]["containers"], changed["spec"]["containers"]
    assert "team" not in plain["metadata"]["labels"]
    assert plain["spec"]["securityContext"] == {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}
    assert proxy not in before["env"]
    assert changed["metadata"]["labels"]["team"] == "gpu"
    assert [item for item in after["env"] if item not in before["env"]] == [settings]
    assert [item for item in after["volumeMounts"] if item not in before["volumeMounts"]] == [mount]
    assert [item for item in changed["spec"]["volumes"] if item not in plain["spec"]["volumes"]] == [volume]
    assert after["securityContext"] == {**before["securityContext"], "privileged": True}
    refused = template(helm, {"nodeAgent.enabled": True, "nodeAgent.pods.extraEnv": [{"name": "POD_IP"}]})
    assert "the chart itself sets POD_IP" in refused.stderr


def test_service_accounts_have_annotations_of_their_own(helm: Path) -> None:
    parts = {**{process: process for process in PROCESSES}, "nodeAgent": "node-agent"}
    values = {f"{key}.serviceAccount.annotations": {"role": name} for key, name in parts.items()}
    objects = rendered(helm, {**values, "nodeAgent.enabled": True})
    found = {
        name: body["metadata"]["annotations"]
        for (kind, name), body in objects.items()
        if kind == "ServiceAccount"
    }
    assert found == {f"tidegate-{name}": {"role": name} for name in parts.values()}


def test_an_autoscaler_sets_the_number_of_gateways(helm: Path) -> None:
    assert ("HorizontalPodAutoscaler", "tidegate-gateway") not in rendered(helm)
    scaling = {
        "enabled": True,
        "maxReplicas": 20,
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}},
    }
    objects = rendered(helm, {"gateway.autoscaling": scaling})
    assert "replicas" not in objects["Deployment", "tidegate-gateway"]["spec"]
    spec = objects["HorizontalPodAutoscaler", "tidegate-gateway"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 20)
    assert spec["scaleTargetRef"]["name"] == "tidegate-gateway"
    assert spec["metrics"][0]["resource"]["target"]["averageUtilization"] == 70
    assert spec["behavior"] == scaling["behavior"]


def test_no_service_of_clients_exposes_probes_or_metrics(helm: Path) -> None:
    objects = rendered(helm, {"web.service.type": "LoadBalancer", "gateway.service.type": "NodePort"})
    services = {name: body["spec"] for (kind, name), body in objects.items() if kind == "Service"}
    exposed = {
        name: [port["name"] for port in spec["ports"]]
        for name, spec in services.items()
        if spec.get("clusterIP") != "None"
    }
    assert exposed == {"tidegate-web": ["http"], "tidegate-gateway": ["traffic"]}
    metrics = objects["Service", "tidegate-web-metrics"]
    assert metrics["spec"]["selector"] == services["tidegate-web"]["selector"]
    assert [port["name"] for port in metrics["spec"]["ports"]] == ["probes"]
    # The ServiceMonitor finds it, and its job is the component.
    monitored = rendered(helm, {"metrics.serviceMonitor.enabled": True})["ServiceMonitor", "tidegate"]["spec"]
    labels = metrics["metadata"]["labels"]
    assert monitored["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitored["jobLabel"]] == "web"


def test_an_ingress_and_a_route_lead_to_the_dashboard(helm: Path) -> None:
    values: dict[str, Any] = {
        "web.hosts": ["tidegate.example.com"],
        "web.service.port": 80,
        "web.ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"cert-manager.io/cluster-issuer": "ca"},
            "tls": [{"secretName": "web-tls", "hosts": ["tidegate.example.com"]}],
        },
        "web.httpRoute": {"enabled": True, "parentRefs": [{"name": "public", "namespace": "gateways"}]},
    }
    objects = rendered(helm, values)
    ingress = objects["Ingress", "tidegate-web"]
    assert ingress["metadata"]["annotations"] == {"cert-manager.io/cluster-issuer": "ca"}
    assert (ingress["spec"]["ingressClassName"], ingress["spec"]["tls"]) == (
        "nginx",
        values["web.ingress"]["tls"],
    )
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == "tidegate.example.com"
    backend = rule["http"]["paths"][0]["backend"]["service"]
    ports = {port["name"]: port["port"] for port in objects["Service", "tidegate-web"]["spec"]["ports"]}
    assert (backend["name"], backend["port"]["name"] in ports) == ("tidegate-web", True)
    route = objects["HTTPRoute", "tidegate-web"]["spec"]
    assert (route["hostnames"], route["parentRefs"]) == (
        values["web.hosts"],
        values["web.httpRoute"]["parentRefs"],
    )
    assert route["rules"][0]["backendRefs"] == [{"name": "tidegate-web", "port": ports["http"]}]
    # The dashboard refuses other hosts, so that they are named once.
    assert json.loads(env_of(objects, "web")["TIDEGATE_WEB_HOSTS"]) == values["web.hosts"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"web.ingress.enabled": True}, "list in web.hosts"),
        ({"web.httpRoute.enabled": True, "web.hosts": ["a.example.com"]}, "web.httpRoute.parentRefs"),
    ],
    ids=["hosts", "parents"],
)
def test_what_a_way_to_the_dashboard_needs_is_named(
    helm: Path, values: Mapping[str, object], message: str
) -> None:
    assert message in template(helm, values).stderr


def test_one_prometheus_serves_both_processes(helm: Path) -> None:
    def urls(**values: str) -> tuple[str, str]:
        paths = {path.replace("__", "."): value for path, value in values.items()}
        objects = rendered(helm, {**paths, "networkPolicy.enabled": True})
        for process in ("controllers", "web"):
            url = env_of(objects, process)["TIDEGATE_PROMETHEUS_URL"]
            rules = objects["NetworkPolicy", f"tidegate-{process}"]["spec"]["egress"]
            open_ports = {port["port"] for rule in rules for port in rule["ports"]}
            assert (9090 in open_ports) is bool(url)
        controllers, web = (
            env_of(objects, name)["TIDEGATE_PROMETHEUS_URL"] for name in ("controllers", "web")
        )
        return controllers, web

    one, other = "http://prometheus.monitoring:9090", "http://thanos:9090"
    assert urls() == ("", "")
    assert urls(prometheus__url=one) == (one, one)
    assert urls(prometheus__url=one, web__prometheusUrl=other) == (one, other)
    assert urls(web__prometheusUrl=other) == ("", other)


def test_the_controllers_write_the_session_key_unless_another_secret_is_named(helm: Path) -> None:
    objects = rendered(helm)
    assert env_of(objects, "controllers")["TIDEGATE_OWN_SESSION_KEY"] == "true"
    assert not {"data", "stringData"} & objects["Secret", "tidegate-web-session"].keys()
    (rule,) = objects["Role", "tidegate-controllers-secrets"]["rules"]
    assert "tidegate-web-session" in rule["resourceNames"]
    named = rendered(helm, {"web.sessionKeySecret": "mine"})
    assert env_of(named, "controllers")["TIDEGATE_OWN_SESSION_KEY"] == "false"
    assert ("Secret", "tidegate-web-session") not in named
    (rule,) = named["Role", "tidegate-controllers-secrets"]["rules"]
    assert "tidegate-web-session" not in rule["resourceNames"]
    for found, secret in ((objects, "tidegate-web-session"), (named, "mine")):
        volumes = pod_of(found, "web")["spec"]["volumes"]
        (session,) = (volume["secret"] for volume in volumes if volume["name"] == "session")
        # Without items a kubelet would start the pod before the key is there.
        assert session == {"secretName": secret, "items": [{"key": "key", "path": "key"}]}


def test_artifact_hub_lists_the_kinds_of_the_chart() -> None:
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    listed = yaml.safe_load(annotations["artifacthub.io/crds"])
    committed = [yaml.safe_load(path.read_text()) for path in (CHART / "files" / "crds").glob("*.yaml")]
    assert {(kind["kind"], kind["version"], kind["name"]) for kind in listed} == {
        (body["spec"]["names"]["kind"], version["name"], body["metadata"]["name"])
        for body in committed
        for version in body["spec"]["versions"]
    }
    (example,) = yaml.safe_load(annotations["artifacthub.io/crdsExamples"])
    assert (
        Inference.parse({**example, "metadata": {**example["metadata"], "uid": "u"}}).spec.tier
        is Tier.REALTIME
    )


KEY: Final = """%no-protection
Key-Type: RSA
Key-Length: 2048
Name-Real: Tidegate test
Expire-Date: 0
%commit
"""


@pytest.mark.parametrize("chart", [CHART, CHART_OF_KINDS], ids=lambda chart: chart.name)
def test_a_signed_package_is_verified_and_renders_the_same(helm: Path, tmp_path: Path, chart: Path) -> None:
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--pinentry-mode=loopback")
    subprocess.run([*gpg, "--gen-key"], input=KEY, text=True, check=True, capture_output=True, timeout=60)
    for command, ring in (("--export-secret-keys", "secret.gpg"), ("--export", "public.gpg")):
        exported = subprocess.run([*gpg, command], check=True, capture_output=True, timeout=60).stdout
        (tmp_path / ring).write_bytes(exported)
    signed = (f"--keyring={tmp_path / 'secret.gpg'}", "--sign", "--key=Tidegate test")
    run_helm(helm, "package", chart, f"--destination={tmp_path}", *signed)
    (package,) = tmp_path.glob("*.tgz")
    assert package.with_suffix(".tgz.prov").exists()
    for binary in (helm, go_program("helm3")):
        run_helm(binary, "verify", package, f"--keyring={tmp_path / 'public.gpg'}")
    assert rendered(helm, chart=package) == rendered(helm, chart=chart)
    package.write_bytes(package.read_bytes() + b"\0")
    with pytest.raises(AssertionError, match="sha256 sum does not match"):
        run_helm(helm, "verify", package, f"--keyring={tmp_path / 'public.gpg'}")

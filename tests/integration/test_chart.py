"""What Helm makes of the chart: the certificates of xDS, and the values that it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from fixtures.chart import CHART, PROCESSES, Objects, pod_of, rendered, rendered_anew, template
from tidegate.generate import COLLECTOR
from tidegate.planning.certificates import CertificatePart
from tidegate.routing.bootstrap import CollectorSettings, collector_bootstrap
from tidegate.runtime.certificate_issuer import CertificateIssuer

pytestmark = [pytest.mark.integration]

_OWN: Final = {"tidegate-controllers-certificate", "tidegate-xds-certificate", "tidegate-gateway-certificate"}
"""Secrets that the controllers fill."""


def mounted(objects: Objects, deployment: str, volume: str = "xds-tls") -> str | None:
    """The Secret that holds a certificate of a Deployment's pods."""
    volumes = objects["Deployment", deployment]["spec"]["template"]["spec"]["volumes"]
    found = [each.get("secret", {}).get("secretName") for each in volumes if each["name"] == volume]
    return found[0] if found else None


def own(objects: Objects) -> set[str]:
    """The Secrets that are made for the controllers to fill, as their rights and their environment say it too."""
    names = {name for kind, name in objects if kind == "Secret" and name.endswith("-certificate")}
    role = objects.get(("Role", "tidegate-controllers-secrets"))
    granted = set[str]() if role is None else {*role["rules"][0]["resourceNames"]}
    assert {each for each in granted if each.endswith("-certificate")} == names
    container = objects["Deployment", "tidegate-controllers"]["spec"]["template"]["spec"]["containers"][0]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    made = json.loads(str(environment["TIDEGATE_OWN_CERTIFICATES"]))
    assert {f"tidegate-{part}-certificate" for part in made} == names
    return names


def test_by_default_the_controllers_make_all_certificates(helm: Path) -> None:
    objects = rendered(helm)
    assert own(objects) == _OWN
    assert mounted(objects, "tidegate-xds") == "tidegate-xds-certificate"
    assert mounted(objects, "tidegate-gateway") == "tidegate-gateway-certificate"
    assert "tls.crt" in objects["ConfigMap", "tidegate-gateway"]["data"]["xds-certificate.yaml"]
    (rule,) = objects["Role", "tidegate-controllers-secrets"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["secrets"], ["get", "update"])


def test_no_rendering_says_what_is_in_a_certificate(helm: Path) -> None:
    """Argo CD renders anew at each sync: what differed from one to the next would be another certificate each time."""
    first, second = rendered_anew(helm), rendered_anew(helm)
    for name in _OWN:
        assert first["Secret", name] == second["Secret", name]
        assert not {"data", "stringData"} & first["Secret", name].keys()


def test_pods_wait_for_the_files_of_a_secret_that_is_not_filled_yet(helm: Path) -> None:
    """A kubelet starts no pod while an item is missing that is not optional; without items it would mount an empty folder."""
    objects = rendered(helm)
    for deployment in ("tidegate-xds", "tidegate-gateway"):
        volumes = objects["Deployment", deployment]["spec"]["template"]["spec"]["volumes"]
        (secret,) = (each["secret"] for each in volumes if each["name"] == "xds-tls")
        assert {each["key"] for each in secret["items"]} == {"ca.crt", "tls.crt", "tls.key"}
        assert not secret.get("optional")


def test_without_tls_nothing_is_left_of_it_but_the_certificate_for_agents(helm: Path) -> None:
    objects = rendered(helm, {"tls.xds": False})
    assert mounted(objects, "tidegate-xds") is None
    assert mounted(objects, "tidegate-gateway") is None
    assert own(objects) == {"tidegate-controllers-certificate"}
    assert "tls" not in objects["ConfigMap", "tidegate-gateway"]["data"]["bootstrap.yaml"]


def test_certificates_of_ones_own_are_used_as_they_are(helm: Path) -> None:
    objects = rendered(
        helm, {"tls.existing": {"xds": "server-cert", "gateway": "gateway-cert", "controllers": "mine"}}
    )
    assert mounted(objects, "tidegate-xds") == "server-cert"
    assert mounted(objects, "tidegate-gateway") == "gateway-cert"
    assert mounted(objects, "tidegate-controllers", "tls") == "mine"
    assert own(objects) == set()
    for some, rest in (
        ({"xds": "a", "gateway": "b"}, {"tidegate-controllers-certificate"}),
        ({"controllers": "c"}, _OWN - {"tidegate-controllers-certificate"}),
    ):
        assert own(rendered(helm, {"tls.existing": some})) == rest


def test_node_agents_trust_whom_the_controllers_are_known_by(helm: Path) -> None:
    for values, secret in (
        ({}, "tidegate-controllers-certificate"),
        ({"tls.existing.controllers": "mine"}, "mine"),
        ({"tls.certManager.issuerRef.name": "issuer"}, "tidegate-controllers-certificate"),
    ):
        objects = rendered(helm, {"nodeAgent.enabled": True, **values})
        volumes = objects["DaemonSet", "tidegate-node-agent"]["spec"]["template"]["spec"]["volumes"]
        (authority,) = (each["secret"] for each in volumes if each["name"] == "authority")
        assert authority["secretName"] == secret


def test_an_issuer_of_cert_manager_makes_certificates_of_the_same_names(helm: Path) -> None:
    issuer = {"name": "tidegate-xds", "kind": "ClusterIssuer"}
    objects = rendered(helm, {"tls.certManager.issuerRef": issuer})
    assert own(objects) == {"tidegate-controllers-certificate"}, (
        "who orders agents is signed by no issuer of others"
    )
    made = {name: body["spec"] for (kind, name), body in objects.items() if kind == "Certificate"}
    used = {
        CertificatePart.XDS: mounted(objects, "tidegate-xds"),
        CertificatePart.GATEWAY: mounted(objects, "tidegate-gateway"),
    }
    assert made.keys() == {*used.values()}
    assert not made.keys() & _OWN, "Helm takes its own Secrets away when it makes none any more"
    names = CertificateIssuer("tidegate", "tidegate-system").dns_names()
    for part, secret in used.items():
        spec = made[str(secret)]
        assert (spec["secretName"], spec["issuerRef"]) == (secret, issuer)
        assert tuple(spec["dnsNames"]) == names[part]
    plain = rendered(helm, {"tls.certManager.issuerRef": issuer, "tls.xds": False})
    assert [name for kind, name in plain if kind == "Certificate"] == []
    assert own(plain) == {"tidegate-controllers-certificate"}


def test_hosts_of_issuers_and_their_authority_reach_the_xds_servers(helm: Path) -> None:
    jwks = {"allowedHosts": ["login.example.com:8443"], "caConfigMap": "corporate-ca"}
    pod = rendered(helm, {"auth.jwks": jwks})["Deployment", "tidegate-xds"]["spec"]["template"]["spec"]
    environment = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert environment["TIDEGATE_JWKS_HOSTS"] == '["login.example.com:8443"]'
    authorities = Path(environment["TIDEGATE_JWKS_AUTHORITIES"])
    mounts = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    mounted_there = volumes[mounts[str(authorities.parent)]]
    assert (mounted_there["configMap"]["name"], authorities.name) == ("corporate-ca", "ca.crt")
    plain = rendered(helm)["Deployment", "tidegate-xds"]["spec"]["template"]["spec"]
    assert "jwks-ca" not in {one["name"] for one in plain["volumes"]}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tls.existing": {"xds": "mine"}}, "set both xds and gateway"),
        ({"tls.xds": False, "auth.namespaces": ["ads"]}, "needs tls.xds: true"),
        (
            {"tls.existing": {"xds": "a", "gateway": "b"}, "tls.certManager.issuerRef.name": "c"},
            "keep one",
        ),
        ({"telemetry.otlp.endpoint": "https://collector:4318"}, "telemetry.otlp.caConfigMap"),
        (
            {"telemetry.otlp": {"endpoint": "http://collector:4318", "authorizationSecret": "s"}},
            "would be sent in plain text",
        ),
    ],
)
def test_values_that_cannot_work_are_refused(helm: Path, values: Mapping[str, object], said: str) -> None:
    done = template(helm, values)
    assert done.returncode != 0
    assert said in done.stderr


def test_the_tls_port_has_a_service_and_its_secrets_alone_are_read(helm: Path) -> None:
    objects = rendered(helm, {"gateway.tls.secrets": ["front"], "gateway.tls.clientAuthority": "callers"})
    assert objects["Service", "tidegate-gateway-tls"]["spec"]["ports"][0]["port"] == 8443
    (rule,) = objects["Role", "tidegate-xds-gateway-tls"]["rules"]
    assert (rule["resources"], rule["resourceNames"]) == (["secrets"], ["front", "callers"])
    assert ("Service", "tidegate-gateway-tls") not in rendered(helm)


def test_the_keys_of_the_tls_port_do_not_travel_in_plain_text(helm: Path) -> None:
    refused = template(helm, {"gateway.tls.secrets": ["front"], "tls.xds": False})
    assert refused.returncode != 0
    assert "gateway.tls.secrets needs tls.xds: true" in refused.stderr


def test_node_agents_and_the_rights_that_they_need_come_together_or_not_at_all(helm: Path) -> None:
    added = rendered(helm, {"nodeAgent.enabled": True}).keys() - rendered(helm).keys()
    assert {kind for kind, _ in added} == {
        "ServiceAccount",
        "DaemonSet",
        "ClusterRole",
        "ClusterRoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    objects = rendered(
        helm,
        {
            "nodeAgent.enabled": True,
            "nodeAgent.plugin.namespace": "gpu",
            "nodeAgent.plugin.mpsDaemonSet": "mps",
        },
    )
    pod = objects["DaemonSet", "tidegate-node-agent"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    # "void" would keep NVIDIA's runtime from putting the control program into the container.
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"} in container["env"]
    # Of the controllers' Secret it gets what vouches for them, and never their key.
    authority = next(one for one in pod["volumes"] if one["name"] == "authority")
    assert authority["secret"]["items"] == [{"key": "ca.crt", "path": "client-ca.crt"}]
    environment = {
        one["name"]: one.get("value")
        for one in objects["Deployment", "tidegate-controllers"]["spec"]["template"]["spec"]["containers"][0][
            "env"
        ]
    }
    assert (environment["TIDEGATE_SHARING_NAMESPACE"], environment["TIDEGATE_SHARING_DAEMON"]) == (
        "gpu",
        "mps",
    )
    policy = objects["ValidatingAdmissionPolicy", "tidegate-pod-bounds"]["spec"]["validations"][0]
    assert "== 'gpu'" in policy["expression"]
    assert "owner.name == 'mps'" in policy["expression"]
    assert "TIDEGATE_SHARING_NAMESPACE" not in {
        one["name"]
        for one in rendered(helm)["Deployment", "tidegate-controllers"]["spec"]["template"]["spec"][
            "containers"
        ][0]["env"]
    }


def dashboards(objects: Objects) -> Mapping[str, Mapping[str, Any]]:
    """The ConfigMaps with dashboards, by name."""
    found = {name: each for (kind, name), each in objects.items() if kind == "ConfigMap"}
    return {name: each for name, each in found.items() if name.startswith("tidegate-dashboard-")}


def test_dashboards_come_when_asked_for_as_the_sidecar_finds_them(helm: Path) -> None:
    assert dashboards(rendered(helm)) == {}
    found = dashboards(rendered(helm, {"grafana.dashboards.enabled": True}))
    assert len(found) == 7
    for each in found.values():
        assert each["metadata"]["namespace"] == "tidegate-system"
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "Tidegate"}
        ((name, text),) = each["data"].items()
        assert text == (CHART / "files" / "dashboards" / name).read_text()


def test_dashboards_go_where_and_are_called_as_a_grafana_wants(helm: Path) -> None:
    values = {
        "enabled": True,
        "namespace": "monitoring",
        "folder": "",
        "labels": {"grafana_dashboard": "mine", "team": "ads"},
        "annotations": {"k8s-sidecar-target-directory": "/tmp/ads"},
    }
    found = dashboards(rendered(helm, {"grafana.dashboards": values}))
    assert len(found) == 7
    for each in found.values():
        metadata = each["metadata"]
        assert metadata["namespace"] == "monitoring"
        assert metadata["labels"].items() >= {"grafana_dashboard": "mine", "team": "ads"}.items()
        assert metadata["annotations"] == {"k8s-sidecar-target-directory": "/tmp/ads"}


def told_of_spans(
    objects: Objects, component: str
) -> tuple[Mapping[str, str], Sequence[str], Mapping[str, Any]]:
    """What a process is told of the receiver of spans: environment, arguments, and its volumes by where they are mounted."""
    pod = objects["Deployment", f"tidegate-{component}"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    environment = {each["name"]: each.get("value", "") for each in container["env"] if "OTLP" in each["name"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
    return environment, container.get("args", ()), mounts


def test_every_process_starts_its_own_server(helm: Path) -> None:
    objects = rendered(helm)
    commands = {
        component: pod_of(objects, component)["spec"]["containers"][0]["command"][3:]
        for component in ("controllers", "xds", "web")
    }
    assert commands == {"controllers": ["controllers"], "xds": ["xds", "serve"], "web": ["web"]}


def test_every_process_is_told_of_the_receiver_of_spans(helm: Path) -> None:
    otlp = {"endpoint": "http://collector-4318.observability.svc", "samplingPercent": 0}
    objects = rendered(helm, {"telemetry.otlp": otlp, "networkPolicy.enabled": True})
    for component in ("controllers", "xds", "web"):
        environment, _, mounts = told_of_spans(objects, component)
        assert environment == {
            "TIDEGATE_OTLP_ENDPOINT": "http://collector-4318.observability.svc",
            "TIDEGATE_OTLP_SAMPLING_PERCENT": "0",
        }
        assert not [path for path in mounts if "collector" in path]
    _, arguments, _ = told_of_spans(objects, "gateway")
    asked = json.loads(arguments[[*arguments].index("--config-yaml") + 1])
    assert asked == collector_bootstrap(CollectorSettings("collector-4318.observability.svc", 80))
    for component in PROCESSES:
        egress = objects["NetworkPolicy", f"tidegate-{component}"]["spec"]["egress"]
        assert {"ports": [{"protocol": "TCP", "port": 80}]} in egress


def test_a_receiver_with_tls_gets_its_files_to_every_process(helm: Path) -> None:
    otlp = {"endpoint": "https://spans.example.com:4319", "caConfigMap": "ca", "authorizationSecret": "spans"}
    objects = rendered(helm, {"telemetry.otlp": otlp})
    files = CollectorSettings("spans.example.com", 4319, COLLECTOR.authorities, COLLECTOR.authorization)
    for component in PROCESSES:
        environment, arguments, mounts = told_of_spans(objects, component)
        assert mounts[str(Path(files.authorities).parent)]["configMap"]["name"] == "ca"
        assert mounts[str(Path(files.authorization).parent)]["secret"]["secretName"] == "spans"
        if component == "gateway":
            asked = json.loads(arguments[[*arguments].index("--config-yaml") + 1])
            assert asked == collector_bootstrap(files)
        else:
            assert environment["TIDEGATE_OTLP_AUTHORITIES"] == files.authorities
            assert environment["TIDEGATE_OTLP_AUTHORIZATION_FILE"] == files.authorization


def test_by_default_nobody_is_told_of_spans(helm: Path) -> None:
    objects = rendered(helm)
    for component in PROCESSES:
        environment, arguments, mounts = told_of_spans(objects, component)
        assert not environment
        assert "--config-yaml" not in arguments
        assert not [path for path in mounts if "collector" in path]

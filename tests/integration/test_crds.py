"""The CRDs in a real API server: each rule refuses, defaults fill in, kubectl reads like a manual."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders.backfill import backfill_spec
from builders.compute_override import compute_override_body
from builders.compute_pool import compute_pool_body
from builders.feature_compute import feature_compute_body
from builders.inference import inference_body
from builders.live_features import live_features_spec, stream_source
from builders.model_access import a_route, model_access_body
from builders.refusals import REFUSALS, REFUSED_CHANGES, Refusal, RefusedChange
from builders.waiting import wait_until
from fixtures.control_plane import Kubectl, a_namespace
from tidegate.api.crd import render_crds

pytestmark = pytest.mark.usefixtures("crds")

Body = dict[str, Any]
BUILDERS: Mapping[str, Callable[..., Body]] = {
    "inference": inference_body,
    "modelaccess": model_access_body,
    "featurecompute": feature_compute_body,
}
CLUSTER_KINDS: Mapping[str, Callable[..., Body]] = {
    "computepool": compute_pool_body,
    "computeoverride": lambda: compute_override_body(hold=True),
}


@pytest.fixture(scope="module")
def space(kubectl: Kubectl, crds: Path) -> Iterator[str]:
    """One namespace for all tests of this file: Kubernetes asks for every kind when one goes."""
    del crds
    with a_namespace(kubectl, __name__) as name:
        yield name


@pytest.fixture
def namespace(kubectl: Kubectl, space: str) -> Iterator[str]:
    """Its name; a test leaves no object of ours in it."""
    yield space
    for kind in BUILDERS:
        kubectl("delete", kind, "--all", f"--namespace={space}")


def placed(body: Mapping[str, Any], namespace: str) -> str:
    """The body as a user would send it, in that namespace."""
    place = {} if body["kind"].lower() in {*CLUSTER_KINDS, "allocationdecision"} else {"namespace": namespace}
    return json.dumps({**body, "metadata": {"name": body["metadata"]["name"], **place}})


def created(kubectl: Kubectl, namespace: str, body: Mapping[str, Any]) -> Any:
    return kubectl.json("create", "--filename=-", stdin=placed(body, namespace))


def refused(kubectl: Kubectl, body: Mapping[str, Any]) -> str:
    return kubectl.refusal("create", "--dry-run=server", "--filename=-", stdin=placed(body, "default"))


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_the_api_server_refuses_and_says_where_and_why(kubectl: Kubectl, refusal: Refusal) -> None:
    said = refused(kubectl, refusal.body)
    assert refusal.says in said
    assert refusal.path in said


@pytest.mark.parametrize("change", REFUSED_CHANGES, ids=lambda change: change.name)
def test_the_api_server_refuses_a_change(kubectl: Kubectl, namespace: str, change: RefusedChange) -> None:
    created(kubectl, namespace, change.before)
    said = kubectl.refusal("replace", "--filename=-", stdin=placed(change.after, namespace))
    assert change.says in said
    assert change.path in said
    if (kind := change.before["kind"].lower()) not in BUILDERS:
        kubectl("delete", kind, change.before["metadata"]["name"])


def test_a_served_name_may_be_written_out(kubectl: Kubectl, namespace: str) -> None:
    created(kubectl, namespace, inference_body("ctr"))
    kubectl("replace", "--filename=-", stdin=placed(inference_body("ctr", model={"name": "ctr"}), namespace))


def test_every_rule_and_every_enum_is_tried() -> None:
    """A rule without an object that breaks it may be one that never refuses."""
    untried = [rule["message"] for rule in _rules() if not _is_tried(rule["message"])]
    assert untried == []
    # Of the kinds that users write.
    enums = {
        path
        for path, node in _nodes()
        if "enum" in node and ".spec." in path and path.partition(".")[0] != "AllocationDecision"
    }
    assert {path for path in enums if not _refused_enum(path)} == set()


def _is_tried(message: str) -> bool:
    return any(message.startswith(refusal.says) for refusal in (*REFUSALS, *REFUSED_CHANGES))


def _refused_enum(path: str) -> bool:
    kind, _, field = path.partition(".")
    return any(
        refusal.says == "Unsupported value"
        and refusal.body["kind"] == kind
        and re.sub(r"\[\d+\]", "[]", refusal.path) == field
        for refusal in REFUSALS
    )


def _rules() -> Iterator[Mapping[str, str]]:
    for path, node in _nodes():
        if ".status." not in path:  # what fences a status is tried where it is written
            yield from node.get("x-kubernetes-validations", ())


def _nodes() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for text in render_crds().values():
        spec = yaml.safe_load(text)["spec"]
        yield from _walk(spec["names"]["kind"], spec["versions"][0]["schema"]["openAPIV3Schema"])


def _walk(path: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _walk(f"{path}.{name}", child)
    if "items" in node:
        yield from _walk(f"{path}[]", node["items"])


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS.keys())
def test_a_valid_object_is_taken(kubectl: Kubectl, namespace: str, builder: Callable[..., Body]) -> None:
    assert created(kubectl, namespace, builder())["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    "uri",
    [
        "file:///models/ctr",
        "pvc://claim/ctr",
        "pvc://claim",
        "https://models.example.com:8443/ctr/v..1",
        "s3://models.example/ctr/~old",
        "gs://models_2.example/ctr",
        "oci://registry.example.com:5000/ads/ctr",
        "hf://Qwen/DIN_base/onnx",
    ],
)
def test_every_scheme_is_taken(kubectl: Kubectl, namespace: str, uri: str) -> None:
    stored = created(kubectl, namespace, inference_body(model={"uri": uri}))
    assert stored["spec"]["model"]["uri"] == uri


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("tier", ["realtime", "nearline", "offline"]),
        ("model.format", ["ONNX", "TorchExport", "TensorRT", "Python"]),
        ("batching.mode", ["Disabled", "Adaptive", "Fixed"]),
    ],
)
def test_every_value_of_an_enum_is_taken(
    kubectl: Kubectl, namespace: str, field: str, values: list[str]
) -> None:
    for number, value in enumerate(values):
        spec: Body = {}
        outer, _, inner = field.rpartition(".")
        (spec.setdefault(outer, {}) if outer else spec)[inner] = value
        created(kubectl, namespace, inference_body(f"i{number}", **spec))


def test_defaults_are_filled_in(kubectl: Kubectl, namespace: str) -> None:
    stored = created(
        kubectl, namespace, inference_body(replicas=None, model={"uri": "file:///m", "version": "1"})
    )
    assert stored["spec"] == {
        "model": {"uri": "file:///m", "version": "1", "format": "ONNX"},
        "tier": "realtime",
        "replicas": 1,
        "value": {"perRequest": "1"},
        "instances": 1,
        "batching": {"mode": "Disabled", "maxBatchSize": 128},
        "rollout": {
            "keepVersions": 2,
            "warmup": {"requests": 0},
            "mode": "Surge",
            "progressDeadline": "10m",
        },
    }
    access = created(
        kubectl, namespace, model_access_body(routes=[{"name": "all", "targets": [{"inference": "ctr"}]}])
    )
    route = access["spec"]["routes"][0]
    assert (route["timeout"], route["targets"][0]["weight"]) == ("1s", 100)
    event = {"name": "sale", "at": "2026-11-27T20:00:00Z", "duration": "2h", "factor": "3"}
    pool = compute_pool_body("with-defaults", policy={"forecast": {}, "events": [event]})
    policy = created(kubectl, namespace, pool)["spec"]["policy"]
    assert policy == {
        "mode": "RecommendOnly",
        "interval": "30s",
        "dwell": "5m",
        "forecast": {"horizon": "5m", "quantile": "0.9", "timeZone": "UTC"},
        "events": [{**event, "timeZone": "UTC"}],
        "nodeLoss": {"mode": "Priced", "expectedEvery": "720h"},
    }
    features = created(
        kubectl,
        namespace,
        feature_compute_body(**live_features_spec(resources=None), backfill=backfill_spec()),
    )["spec"]
    stream = features["sources"][1]["stream"]
    assert (stream["lateness"], stream["ttl"], stream["maxEvents"]) == ("1m", "168h", 256)
    assert features["sources"][0]["table"]["minKeysPercent"] == 50
    assert features["eventStorage"] == "4Gi"
    backfill = features["backfill"]
    assert (backfill["shards"], backfill["parallelism"], backfill["maxRefusedRows"]) == (8, 2, 0)
    defaults = {name: item["default"] for item in features["features"] for name, item in _defaulted(item)}
    assert defaults == {"lookup": "0", "window": "0", "timeSince": "-1"}


def _defaulted(feature: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The operation of a feature by name, if it has a default."""
    return (
        (name, operation)
        for name, operation in feature.items()
        if isinstance(operation, dict) and "default" in operation
    )


def test_unknown_and_future_fields_are_refused_under_strict_validation(kubectl: Kubectl) -> None:
    assert 'unknown field "spec.online"' in refused(kubectl, inference_body(online={"interval": "60s"}))
    assert 'unknown field "spec.admission"' in refused(kubectl, model_access_body(admission={}))


def test_the_largest_allowed_objects_pass_within_the_cost_budget(kubectl: Kubectl, namespace: str) -> None:
    match = {"headers": [{"name": f"x-header-{n}", "exact": "v" * 256} for n in range(8)]}
    targets = [{"inference": f"ctr-{n}", "weight": 1} for n in range(16)]
    routes = [a_route(f"r{n}", match=match, targets=targets) for n in range(64)]
    checks = [{"prometheus": f"{n}" + "q" * 2047, "max": "1"} for n in range(8)]
    release = {"route": "r63", "target": "ctr-15", "steps": list(range(1, 21)), "checks": checks}
    hosts = [f"h{n}.example.com" for n in range(16)]
    created(kubectl, namespace, model_access_body(hosts=hosts, routes=routes, release=release))
    entities = [{"name": f"entity_{n}", "key": "key", "type": "int64"} for n in range(16)]
    table = {"uri": "file:///" + "t" * 1000}
    sources = [{"name": f"source_{n}", "entity": "entity_15", "table": table} for n in range(32)]
    fields = ["entity_15.key", "source_31.a", "source_31.b", "source_31.c"]
    features = [{"name": f"feature_{n}", "cross": {"fields": fields, "buckets": 1000}} for n in range(256)]
    body = feature_compute_body(entities=entities, sources=sources, features=features)
    created(kubectl, namespace, body)
    fields = [{"name": f"{n}_".rjust(63, "f"), "type": "int64"} for n in range(32)]
    servers = [f"{n}.{'h' * 250}:9092" for n in range(16)]
    topic = {"bootstrapServers": servers, "topic": "t" * 249, "tls": True, "sasl": "PLAIN", "secretName": "s"}
    streams = [
        {**stream_source(f"source_{n}", kafka=topic, fields=fields), "entity": "entity_15"} for n in range(32)
    ]
    window = {"field": f"source_31.{fields[31]['name']}", "aggregate": "Mean", "over": "8760h", "every": "1h"}
    ratio = {"numerator": window, "denominator": window}
    features = [{"name": f"feature_{n}", "ratio": ratio} for n in range(256)]
    request = [{"name": f"input_{n}", "type": "string"} for n in range(64)]
    spec = {"entities": entities, "request": request, "sources": streams, "features": features}
    created(kubectl, namespace, feature_compute_body("live", **spec))


@pytest.mark.parametrize("kind", ["inference", "featurecompute"])
def test_scale_moves_replicas(kubectl: Kubectl, namespace: str, kind: str) -> None:
    name = created(kubectl, namespace, BUILDERS[kind]())["metadata"]["name"]
    kubectl("scale", f"{kind}/{name}", "--replicas=3", "--namespace", namespace)
    stored = kubectl.json("get", kind, name, "--namespace", namespace)
    assert stored["spec"]["replicas"] == 3
    assert "greater than or equal to 0" in kubectl.refusal(
        "patch", kind, name, "--namespace", namespace, "--type=merge", '--patch={"spec":{"replicas":-1}}'
    )


def test_scale_to_zero_is_for_those_who_can_wait(kubectl: Kubectl, namespace: str) -> None:
    created(kubectl, namespace, inference_body("now"))
    created(kubectl, namespace, inference_body("later", tier="nearline"))

    said = kubectl.refusal("scale", "inference/now", "--replicas=0", "--namespace", namespace)
    assert "replicas: 0 is only for tier nearline and offline" in said
    kubectl("scale", "inference/later", "--replicas=0", "--namespace", namespace)
    assert kubectl.json("get", "inference", "later", "--namespace", namespace)["spec"]["replicas"] == 0
    said = kubectl.refusal(
        *("patch", "inference", "later", "--namespace", namespace, "--type=merge"),
        '--patch={"spec":{"tier":"realtime"}}',
    )
    assert "set replicas to 1 or more" in said


def test_scale_reports_what_the_status_says(kubectl: Kubectl, namespace: str) -> None:
    created(kubectl, namespace, inference_body())
    status = {"status": {"replicas": 2, "selector": "tidegate.io/inference=ctr"}}
    arguments = ("inference", "ctr", "--namespace", namespace)
    kubectl("patch", *arguments, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    scale = kubectl.json("get", *arguments, "--subresource=scale")
    assert scale["status"] == {"replicas": 2, "selector": "tidegate.io/inference=ctr"}


def test_the_table_shows_what_matters(kubectl: Kubectl, namespace: str) -> None:
    created(kubectl, namespace, inference_body("ctr-v3"))
    status = {
        "status": {
            "readyReplicas": 2,
            "versions": {"serving": "3"},
            "model": {"name": "ctr"},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "AllReplicasReady",
                    "message": "2 of 2 replicas serve version 3",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        }
    }
    kubectl(
        "patch",
        "inf",
        "ctr-v3",
        f"--namespace={namespace}",
        "--subresource=status",
        "--type=merge",
        f"--patch={json.dumps(status)}",
    )
    header, row = kubectl("get", "inf", "--namespace", namespace).splitlines()
    assert header.split() == ["NAME", "MODEL", "VERSION", "TIER", "READY", "REASON", "REPLICAS", "AGE"]
    assert row.split()[:7] == ["ctr-v3", "ctr", "3", "realtime", "True", "AllReplicasReady", "2"]
    wide = kubectl("get", "inf", "--namespace", namespace, "--output=wide")
    assert "2 of 2 replicas serve version 3" in wide


def test_short_names_and_the_category_find_them(kubectl: Kubectl, namespace: str) -> None:
    for builder in BUILDERS.values():
        created(kubectl, namespace, builder())
    for short in ("inf", "mac", "fc"):
        assert len(kubectl("get", short, "--namespace", namespace, "--no-headers").splitlines()) == 1
    everything = kubectl("get", "tidegate", "--namespace", namespace, "--output=name").split()
    # Objects of the whole cluster are listed in every namespace.
    own = [
        name for name in everything if name.partition(".")[0] not in {*CLUSTER_KINDS, "allocationdecision"}
    ]
    assert len(own) == 3


def test_inferences_are_selected_by_tier(kubectl: Kubectl, namespace: str) -> None:
    created(kubectl, namespace, inference_body("a"))
    created(kubectl, namespace, inference_body("b", tier="offline"))
    found = kubectl(
        "get", "inf", "--namespace", namespace, "--field-selector=spec.tier=offline", "--output=name"
    )
    assert found.split() == ["inference.tidegate.io/b"]


def test_a_status_cannot_be_set_through_the_object(kubectl: Kubectl, namespace: str) -> None:
    stored = created(kubectl, namespace, {**inference_body(), "status": {"replicas": 9}})
    assert stored["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize("kind", [*BUILDERS, *CLUSTER_KINDS])
def test_explain_reads_like_a_manual(kubectl: Kubectl, crds: Path, kind: str) -> None:
    """Every field of the spec is described, with its default where it has one."""
    wait_until(
        lambda: "<Object>" in kubectl.run("explain", f"{kind}.spec", "--recursive").stdout,
        what=f"{kind} is explained",
    )
    bare = [
        path
        for path, node in _nodes()
        if path.lower().startswith(f"{kind}.") and "[]" not in path[-2:] and not node.get("description")
    ]
    assert [path for path in bare if not path.endswith(".metadata")] == []


def test_explain_shows_unit_and_default(kubectl: Kubectl) -> None:
    def explained() -> str:
        return " ".join(kubectl.run("explain", "modelaccess.spec.routes.timeout").stdout.split())

    said = "from 1ms to 1h. Default: 1s."
    wait_until(lambda: said in explained(), what=f"the timeout is explained {said}")


def test_applying_the_crds_again_changes_nothing(kubectl: Kubectl, crds: Path) -> None:
    before = _versions(kubectl)
    kubectl("apply", "--server-side", f"--filename={crds}")
    assert _versions(kubectl) == before


def _versions(kubectl: Kubectl) -> dict[str, str]:
    found = kubectl.json("get", "crd", "--selector=app.kubernetes.io/name=tidegate")
    return {item["metadata"]["name"]: item["metadata"]["generation"] for item in found["items"]}


def test_features_of_keys_alone_need_no_sources(crds: Path, kubectl: Kubectl, namespace: str) -> None:
    spec = {
        "entities": [{"name": "user", "key": "user_id", "type": "int64"}],
        "features": [{"name": "bucket", "hash": {"field": "user.user_id", "buckets": 10}}],
    }
    body = {
        "apiVersion": "tidegate.io/v1alpha1",
        "kind": "FeatureCompute",
        "metadata": {"name": "keys"},
        "spec": spec,
    }
    kubectl.apply(body, namespace=namespace)

    assert kubectl.json("get", "featurecompute", "keys", "-n", namespace)["spec"].get("sources", []) == []

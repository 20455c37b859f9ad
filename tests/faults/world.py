"""The end state of a run in a form that two runs can be compared by: what is random or a time is taken out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from faults.agents import PodAgent
from tidegate_localcluster.fleet_demo.api import ApiServerClient

INFERENCE: Final = "/apis/tidegate.io/v1alpha1/namespaces/{}/inferences"
POOLS: Final = "/apis/tidegate.io/v1alpha1/computepools"
DECISIONS: Final = "/apis/tidegate.io/v1alpha1/allocationdecisions"
CHILDREN: Final[Mapping[str, str]] = {
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
}
OURS: Final = "app.kubernetes.io/managed-by=tidegate"

_METADATA: Final = frozenset({"name", "labels", "annotations", "ownerReferences", "finalizers"})
_VOLATILE: Final = frozenset(
    {
        "tidegate.io/epoch",
        "tidegate.io/applied",
        "tidegate.io/created",
        "tidegate.io/template",
        "epoch",
        "uid",
        "lastTransitionTime",
        "lastUpdateTime",
        "collisionCount",
        "observedGeneration",  # of Deployments and budgets: their generation counts writes, not what they say
        "pod-template-hash",
    }
)
_SOURCE: Final = "tidegate.io/source"
_INFERENCE: Final = "tidegate.io/inference"


@dataclass(frozen=True, slots=True)
class World:
    """What is left when a run has settled."""

    content: Mapping[str, Any]

    def differences(self, reference: World) -> tuple[str, ...]:
        """Where it differs from the reference run, one line each; empty when it does not."""
        return tuple(_differences("", reference.content, self.content))


async def world(api: ApiServerClient, namespace: str, models: str, agents: Sequence[PodAgent]) -> World:
    """What the API server has of an Inference and its children, and what the pods' agents say and went through."""
    inferences = await api.list_objects(INFERENCE.format(namespace))
    children = {
        kind: await api.list_objects(path.format(namespace), OURS) for kind, path in sorted(CHILDREN.items())
    }
    pods = await api.list_objects(f"/api/v1/namespaces/{namespace}/pods")
    sets = await api.list_objects(f"/apis/apps/v1/namespaces/{namespace}/replicasets")
    words = _words(namespace, models, (*inferences, *(one for found in children.values() for one in found)))
    content = {
        "inferences": [_inference(body) for body in inferences],
        "children": {
            kind: sorted((_object(body) for body in found), key=lambda one: json.dumps(one, sort_keys=True))
            for kind, found in children.items()
        },
        "replica sets": sorted(
            (body["metadata"]["annotations"]["deployment.kubernetes.io/revision"], body["spec"]["replicas"])
            for body in sets
        ),
        "pods": sorted(json.dumps(_pod(body), sort_keys=True) for body in pods),
        "agents": sorted(json.dumps(_agent(agent), sort_keys=True) for agent in agents),
        "pool": [_object(body) for body in [await api.get(f"{POOLS}/{namespace}")] if body],
        "decisions": [_decision(body) for body in await decisions_of(api, namespace)],
    }
    text = json.dumps(content, sort_keys=True)
    for word, stands_for in words:
        text = text.replace(word, stands_for)
    return World(json.loads(text))


async def decisions_of(api: ApiServerClient, pool: str) -> Sequence[Mapping[str, Any]]:
    """The AllocationDecisions about a pool, the oldest first."""
    found = [body for body in await api.list_objects(DECISIONS) if body["spec"]["pool"] == pool]
    return sorted(found, key=lambda body: str(body["spec"]["at"]))


def _decision(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Who gets what and what came of it; figures are another in each run."""
    moves = [{name: each[name] for name in ("inference", "from", "to")} for each in body["spec"]["moves"]]
    outcome = body.get("status", {}).get("outcome", {})
    return {
        "moves": moves,
        "applied": "appliedAt" in outcome,
        "moved": outcome.get("movedSlices"),
        "error": outcome.get("error", ""),
    }


def _words(namespace: str, models: str, bodies: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, str]]:
    """Words that are another in each run, and what stands for them; hashes of sources in the order of their Inferences."""
    labels = [body["metadata"].get("labels") or {} for body in bodies]
    owned = sorted({(each.get(_INFERENCE, ""), each[_SOURCE]) for each in labels if _SOURCE in each})
    sources = tuple(dict.fromkeys(source for _, source in owned))
    return (
        *((body["metadata"]["uid"], "UID") for body in bodies),
        (models, "MODELS"),
        (namespace, "NAMESPACE"),
        *(
            (source, f"SOURCE{number}" if len(sources) > 1 else "SOURCE")
            for number, source in enumerate(sources)
        ),
    )


def _inference(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """All that a user sees of it, its generation included."""
    plain = _object(body)
    return {
        **plain,
        "generation": body["metadata"]["generation"],
        "observed": body.get("status", {}).get("observedGeneration"),
    }


def _object(body: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = {name: value for name, value in body["metadata"].items() if name in _METADATA}
    rest = {name: value for name, value in body.items() if name != "metadata"}
    found: Mapping[str, Any] = _plain({**rest, "metadata": metadata})
    return found


def _pod(body: Mapping[str, Any]) -> Mapping[str, Any]:
    conditions = {item["type"]: item["status"] for item in body["status"].get("conditions", ())}
    return {
        "labels": _plain(body["metadata"]["labels"]),
        "ready": conditions.get("Ready"),
        "ending": "deletionTimestamp" in body["metadata"],
        "resources": [_plain(container["resources"]) for container in body["spec"]["containers"]],
    }


def _agent(agent: PodAgent) -> Mapping[str, Any]:
    report = agent.report()
    said = report.model_dump(mode="json", exclude={"pod", "epoch", "inputs", "outputs"})
    return {"report": said, "history": list(agent.history)}


def _plain(value: Any) -> Any:
    """Without what is another in each run; JSON in a string is looked into."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items() if name not in _VOLATILE}
    if isinstance(value, list):
        items = [_plain(each) for each in value]
        return sorted(items, key=lambda one: json.dumps(one, sort_keys=True)) if _keyed(items) else items
    if isinstance(value, str):
        if value.startswith("{"):
            return _plain(json.loads(value))
        if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", value):
            return "TIME"
        if value.startswith("-----BEGIN"):
            return "PEM"
        value = re.sub(r"-\d{8}-\d{6}-[0-9a-f]{8}\b", "-DECISION", value)
        return re.sub(r"(inf-\w+)-[a-z0-9]{7,10}(-[a-z0-9]{5})?\b", r"\1-GENERATED", value)
    return value


def _keyed(items: Sequence[Any]) -> bool:
    return bool(items) and all(isinstance(item, Mapping) and "type" in item for item in items)


def _differences(place: str, expected: Any, got: Any) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        for name in sorted(expected.keys() | got.keys()):
            yield from _differences(f"{place}.{name}", expected.get(name), got.get(name))
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for number, (ours, theirs) in enumerate(zip(expected, got, strict=True)):
            yield from _differences(f"{place}[{number}]", ours, theirs)
    elif expected != got:
        yield f"{place or '.'} is {_short(got)}, without a fault {_short(expected)}"


def _short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) < 400 else f"{text[:400]}…"

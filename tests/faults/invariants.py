"""The invariants of design/targets.md that a run of one Inference can break, asked after every run."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from faults.proxy import Trace
from faults.scenarios import Pool, Scenario
from faults.world import CHILDREN, INFERENCE, OURS
from tidegate_localcluster.fleet_demo.api import ApiServerClient

if TYPE_CHECKING:
    from faults.sweep import Sweep


async def versions(api: ApiServerClient, namespace: str) -> Mapping[str, str]:
    """The resourceVersion of everything of ours in a namespace, Deployments' own status aside."""
    found: dict[str, str] = {}
    paths = {"Inference": INFERENCE, **CHILDREN}
    for kind, path in paths.items():
        for body in await api.list_objects(path.format(namespace)):
            metadata = body["metadata"]
            if kind in {"Inference", "ConfigMap"}:
                found[f"{kind} {metadata['name']}"] = metadata["resourceVersion"]
            else:
                found[f"{kind} {metadata['name']}"] = str(metadata["generation"])
    return found


async def broken(sweep: Sweep, namespace: str, scenario: Scenario, trace: Trace) -> list[str]:
    """One line for each invariant that does not hold."""
    api = sweep.api
    inferences = await api.list_objects(INFERENCE.format(namespace))
    found = await _owners(api, namespace, {body["metadata"]["uid"] for body in inferences})
    for inference in inferences:
        found += _spec(scenario, inference)
    found += await _foreign(api, namespace)
    found += _claims(trace)
    found += _epochs(sweep, namespace, trace)
    if scenario.keeps_serving and sweep.kubelet.watched.least_ready < 2:
        found.append(f"only {sweep.kubelet.watched.least_ready} of 2 pods were ready at one moment")
    if scenario.pool is not None:
        found += _slices(sweep, scenario.pool)
    return found


def _slices(sweep: Sweep, pool: Pool) -> Iterator[str]:
    """I1, I2: never more pods than slices, never fewer that answer than the floor; and none is started twice."""
    watched = sweep.kubelet.watched
    if watched.most > pool.slices:
        yield f"I1: {watched.most} pods were there at one moment, on {pool.slices} slices"
    if watched.least_ready < pool.floor:
        yield f"I2: {watched.least_ready} pods of {watched.inference} answered at one moment, its floor is {pool.floor}"
    if watched.made != pool.made:
        yield f"{watched.made} pods were started instead of {pool.made}"


async def _owners(api: ApiServerClient, namespace: str, uids: Container[str]) -> list[str]:
    """I5: no child without an owner that is there."""
    orphans: list[str] = []
    for kind, path in CHILDREN.items():
        for body in await api.list_objects(path.format(namespace), OURS):
            owners = [owner["uid"] for owner in body["metadata"].get("ownerReferences", ())]
            if len(owners) != 1 or owners[0] not in uids:
                orphans.append(f"I5: {kind} {body['metadata']['name']} is owned by {owners}, of {uids}")
    return orphans


async def _foreign(api: ApiServerClient, namespace: str) -> list[str]:
    """I5: nothing of somebody else's was deleted or written."""
    theirs = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/theirs")
    managers = {entry["manager"] for entry in (theirs or {}).get("metadata", {}).get("managedFields", ())}
    return (
        []
        if theirs and "tidegate-controllers" not in managers
        else ["I5: somebody else's ConfigMap was touched"]
    )


def _spec(scenario: Scenario, inference: Mapping[str, Any]) -> Iterator[str]:
    """I6: users' specs and metadata are never written."""
    managers = {
        (entry["manager"], entry.get("subresource", ""))
        for entry in inference["metadata"].get("managedFields", ())
    }
    if ("tidegate-controllers", "") in managers:
        yield "I6: the operator wrote a field outside of status"
    edits = 0
    for step in (*scenario.before, *scenario.steps):
        if step.name == inference["metadata"]["name"]:
            edits = 0 if step.spec is None else edits + 1
    if inference["metadata"]["generation"] != edits:
        yield f"I6: generation {inference['metadata']['generation']} after {edits} edits by the user"


def _claims(trace: Trace) -> Iterator[str]:
    """I7: no status ever claimed what no agent of the object had served by then."""
    for claim in trace.claims:
        versions = claim.status.get("versions", {})
        serving, target = versions.get("serving"), versions.get("target")
        if serving is not None and not any(int(serving) in history for history in claim.histories):
            yield f"I7: status claimed version {serving} when only {claim.histories} had been served"
        ready = next((c for c in claim.status.get("conditions", ()) if c["type"] == "Ready"), {})
        proven = sum(int(target or 0) in history for history in claim.histories)
        if ready.get("status") == "True" and proven < claim.status.get("replicas", 0):
            yield f"I7: Ready for version {target} when {proven} agents had served it"


def _epochs(sweep: Sweep, namespace: str, trace: Trace) -> Iterator[str]:
    """I11: terms of leadership never go back, neither in writes nor in what an agent hears."""
    written = [step.epoch for step in trace.steps if step.epoch is not None]
    if written != sorted(written):
        yield f"I11: writes of terms {written}"
    for agent in sweep.kubelet.ever(namespace):
        if agent.epochs != sorted(agent.epochs):
            yield f"I11: {agent.facts.name} heard terms {agent.epochs}"

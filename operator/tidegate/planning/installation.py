"""What is wrong with an installation: kinds, processes, the leader, policies and certificates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from tidegate.api.conditions import timestamp
from tidegate.api.messages.catalogue import OF_PROBLEMS
from tidegate.api.messages.problem import Problem
from tidegate.api.meta import ObjectKey
from tidegate.planning.findings import Finding

COMPONENTS: Final = ("controllers", "xds", "gateway", "web")
"""The Deployments of a release, each named <release>-<component>."""
POLICIES: Final[Mapping[str, str]] = {
    "epoch": "keeps a leader that lost its Lease from undoing its successor's work",
    "override-end": "keeps a ComputeOverride from lasting longer than a week",
}
"""The ValidatingAdmissionPolicies that every release has, named <release>-<name>, and what each is for."""
_LEAST_KUBERNETES: Final = (1, 30)
_SOON: Final = timedelta(days=30)
_NAMED: Final = 3
_SKEW: Final = timedelta(minutes=1)
"""How far the clock of who looks may be ahead of the cluster's."""


@dataclass(frozen=True, slots=True)
class Process:
    """One Deployment."""

    wanted: int
    ready: int
    version: str
    """As its label says."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who holds the controllers' Lease, and until when it counts without being renewed."""

    holder: str
    until: datetime


@dataclass(frozen=True, slots=True)
class Installation:
    """What was seen of a release; None where it could not be looked at."""

    release: str
    namespace: str
    kubernetes: str
    """The API server's version, as v1.34.1."""
    command: str
    """The version of who looks."""
    now: datetime
    schemas: Mapping[str, Sequence[str] | None] | None
    """Of each of our kinds, by the CRD's name, the fields that are not the same here and there; None where there is no CRD."""
    processes: Mapping[str, Process | None] | None
    """By component; None where there is no Deployment."""
    leader: Leader | None
    """An empty holder where there is no Lease."""
    policies: frozenset[str] | None
    """Names of those of POLICIES that are there and bound."""
    certificates: Mapping[str, datetime] | None
    """By Secret, when the certificate ends."""
    skipped: Sequence[str] = field(default=())
    """What could not be looked at, and why."""


def examine(seen: Installation) -> tuple[Finding, ...]:
    """Everything that is not as it should be, in the order in which it is mended best."""
    return (
        *_server(seen),
        *_kinds(seen),
        *_processes(seen),
        *_leader(seen),
        *_policies(seen),
        *_certificates(seen),
    )


def looked_at(seen: Installation) -> int:
    """How many parts of it were."""
    parts = (seen.schemas, seen.processes, seen.certificates)
    policies = 0 if seen.policies is None else len(POLICIES)
    return 2 + sum(len(part) for part in parts if part is not None) + policies


def unlike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths of the fields that only one of two OpenAPI schemas has, with + where it is ours and - where it is theirs."""
    here, there = set(_paths(ours)), set(_paths(theirs))
    return tuple(sorted((*(f"+{path}" for path in here - there), *(f"-{path}" for path in there - here))))


def _server(seen: Installation) -> Iterator[Finding]:
    numbers = re.match(r"v?(\d+)\.(\d+)", seen.kubernetes)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _LEAST_KUBERNETES:
        least = ".".join(map(str, _LEAST_KUBERNETES))
        said = f"the API server is {seen.kubernetes}; Tidegate needs {least} or newer"
        yield _finding(Problem.KUBERNETES_TOO_OLD, "APIServer", "", "kubernetes", said)


def _kinds(seen: Installation) -> Iterator[Finding]:
    for name, differing in (seen.schemas or {}).items():
        if differing is None:
            yield _finding(Problem.KIND_MISSING, "CustomResourceDefinition", "", name, "it is not there")
        elif differing:
            more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            shown = ", ".join(differing[:_NAMED])
            said = f"fields that only this command (+) or only the cluster (-) knows: {shown}{more}"
            yield _finding(Problem.KIND_OUTDATED, "CustomResourceDefinition", "", name, said)


def _processes(seen: Installation) -> Iterator[Finding]:
    for component, process in (seen.processes or {}).items():
        name = f"{seen.release}-{component}"
        if process is None:
            said = f"there is no Deployment {name} in namespace {seen.namespace}"
            yield _finding(Problem.PROCESS_MISSING, "Deployment", seen.namespace, name, said)
            continue
        if process.ready < process.wanted:
            labels = f"app.kubernetes.io/instance={seen.release},app.kubernetes.io/component={component}"
            said = f"{process.ready} of {process.wanted} pods are ready: kubectl describe pods -n {seen.namespace} -l {labels}"
            yield _finding(Problem.PROCESS_NOT_READY, "Deployment", seen.namespace, name, said)
        if process.version and process.version != seen.command:
            said = f"it is of version {process.version}, and this command of {seen.command}"
            yield _finding(Problem.VERSIONS_DIFFER, "Deployment", seen.namespace, name, said)


def _leader(seen: Installation) -> Iterator[Finding]:
    leader, name = seen.leader, f"{seen.release}-controllers"
    if leader is None or not (seen.processes or {}).get("controllers"):
        return
    if not leader.holder:
        said = "nobody holds the Lease"
    elif leader.until + _SKEW < seen.now:
        said = f"{leader.holder} held the Lease until {timestamp(leader.until)}, and nobody took it since"
    else:
        return
    yield _finding(Problem.NO_LEADER, "Lease", seen.namespace, name, said)


def _policies(seen: Installation) -> Iterator[Finding]:
    if seen.policies is None:
        return
    for policy, purpose in POLICIES.items():
        if policy not in seen.policies:
            name = f"{seen.release}-{policy}"
            said = f"it {purpose}, and it or its binding is not there"
            yield _finding(Problem.POLICY_MISSING, "ValidatingAdmissionPolicy", "", name, said)


def _certificates(seen: Installation) -> Iterator[Finding]:
    for name, ends in (seen.certificates or {}).items():
        if ends - seen.now < _SOON:
            verb = "ended" if ends < seen.now else "ends"
            said = f"its certificate {verb} at {timestamp(ends)}"
            yield _finding(Problem.CERTIFICATE_ENDS, "Secret", seen.namespace, name, said)


def _finding(problem: Problem, kind: str, namespace: str, name: str, message: str) -> Finding:
    return Finding(problem.value, OF_PROBLEMS[problem], kind, ObjectKey(namespace, name), message)


def _paths(schema: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for name, field_ in (schema.get("properties") or {}).items():
        path = f"{at}.{name}" if at else name
        yield path
        yield from _paths(field_, path)
    items = schema.get("items")
    if isinstance(items, Mapping):
        yield from _paths(items, f"{at}[]")
    values = schema.get("additionalProperties")
    if isinstance(values, Mapping):
        yield from _paths(values, f"{at}[*]")

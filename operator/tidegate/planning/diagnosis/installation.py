"""Find what is wrong with an installation: kinds, processes, the leader, policies and certificates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from tidegate.api.conditions import format_timestamp
from tidegate.api.messages.catalogue import PROBLEM_MESSAGES
from tidegate.api.messages.findings import ProblemReason
from tidegate.api.meta import ObjectKey
from tidegate.planning.diagnosis.findings import Finding

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
"""How far the observer's clock may be ahead of the cluster's."""


@dataclass(frozen=True, slots=True)
class ComponentDeployment:
    """The Deployment of one component."""

    desired_replicas: int
    ready_replicas: int
    version: str
    """From its label."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The holder of the controllers' Lease, and until when it counts without a renewal."""

    holder: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class ObservedInstallation:
    """What was observed of a release; a field is None if it could not be observed."""

    release: str
    namespace: str
    kubernetes: str
    """The API server's version, as v1.34.1."""
    command: str
    """The version of the command that checks."""
    now: datetime
    schemas: Mapping[str, Sequence[str] | None] | None
    """By CRD, the fields that differ between the cluster and this version; None if the CRD does not exist."""
    processes: Mapping[str, ComponentDeployment | None] | None
    """By component; None if there is no Deployment."""
    leader: LeaseHolder | None
    """With an empty holder if there is no Lease."""
    policies: frozenset[str] | None
    """Names of those of POLICIES that exist and are bound."""
    certificates: Mapping[str, datetime] | None
    """By Secret, when the certificate ends."""
    skipped: Sequence[str] = field(default=())
    """What could not be observed, and why."""


def find_installation_problems(observed: ObservedInstallation) -> tuple[Finding, ...]:
    """Return all problems, in the best order to solve them."""
    return (
        *_check_server(observed),
        *_check_kinds(observed),
        *_check_processes(observed),
        *_check_leader(observed),
        *_check_policies(observed),
        *_check_certificates(observed),
    )


def count_checks(observed: ObservedInstallation) -> int:
    """Return how many parts of the release were checked."""
    parts = (observed.schemas, observed.processes, observed.certificates)
    policies = 0 if observed.policies is None else len(POLICIES)
    return 2 + sum(len(part) for part in parts if part is not None) + policies


def diff_schemas(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths of fields that only one of two OpenAPI schemas has: + for ours, - for theirs."""
    our_paths, their_paths = set(_find_paths(ours)), set(_find_paths(theirs))
    return tuple(
        sorted(
            (
                *(f"+{path}" for path in our_paths - their_paths),
                *(f"-{path}" for path in their_paths - our_paths),
            )
        )
    )


def _check_server(observed: ObservedInstallation) -> Iterator[Finding]:
    numbers = re.match(r"v?(\d+)\.(\d+)", observed.kubernetes)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _LEAST_KUBERNETES:
        minimum = ".".join(map(str, _LEAST_KUBERNETES))
        message = f"the API server is {observed.kubernetes}; Tidegate needs {minimum} or newer"
        yield _make_finding(ProblemReason.KUBERNETES_TOO_OLD, "APIServer", "", "kubernetes", message)


def _check_kinds(observed: ObservedInstallation) -> Iterator[Finding]:
    for name, differing in (observed.schemas or {}).items():
        if differing is None:
            yield _make_finding(
                ProblemReason.KIND_MISSING, "CustomResourceDefinition", "", name, "it is not there"
            )
        elif differing:
            rest = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            shown = ", ".join(differing[:_NAMED])
            message = f"fields that only this command (+) or only the cluster (-) knows: {shown}{rest}"
            yield _make_finding(ProblemReason.KIND_OUTDATED, "CustomResourceDefinition", "", name, message)


def _check_processes(observed: ObservedInstallation) -> Iterator[Finding]:
    for component, process in (observed.processes or {}).items():
        name = f"{observed.release}-{component}"
        if process is None:
            message = f"there is no Deployment {name} in namespace {observed.namespace}"
            yield _make_finding(
                ProblemReason.PROCESS_MISSING, "Deployment", observed.namespace, name, message
            )
            continue
        if process.ready_replicas < process.desired_replicas:
            labels = f"app.kubernetes.io/instance={observed.release},app.kubernetes.io/component={component}"
            message = f"{process.ready_replicas} of {process.desired_replicas} pods are ready: kubectl describe pods -n {observed.namespace} -l {labels}"
            yield _make_finding(
                ProblemReason.PROCESS_NOT_READY, "Deployment", observed.namespace, name, message
            )
        if process.version and process.version != observed.command:
            message = f"it is of version {process.version}, and this command of {observed.command}"
            yield _make_finding(
                ProblemReason.VERSIONS_DIFFER, "Deployment", observed.namespace, name, message
            )


def _check_leader(observed: ObservedInstallation) -> Iterator[Finding]:
    leader, name = observed.leader, f"{observed.release}-controllers"
    if leader is None or not (observed.processes or {}).get("controllers"):
        return
    if not leader.holder:
        message = "nobody holds the Lease"
    elif leader.expires_at + _SKEW < observed.now:
        message = f"{leader.holder} held the Lease until {format_timestamp(leader.expires_at)}, and nobody took it since"
    else:
        return
    yield _make_finding(ProblemReason.NO_LEADER, "Lease", observed.namespace, name, message)


def _check_policies(observed: ObservedInstallation) -> Iterator[Finding]:
    if observed.policies is None:
        return
    for policy, purpose in POLICIES.items():
        if policy not in observed.policies:
            name = f"{observed.release}-{policy}"
            message = f"it or its binding does not exist; it {purpose}"
            yield _make_finding(ProblemReason.POLICY_MISSING, "ValidatingAdmissionPolicy", "", name, message)


def _check_certificates(observed: ObservedInstallation) -> Iterator[Finding]:
    for name, ends in (observed.certificates or {}).items():
        if ends - observed.now < _SOON:
            verb = "ended" if ends < observed.now else "ends"
            message = f"its certificate {verb} at {format_timestamp(ends)}"
            yield _make_finding(ProblemReason.CERTIFICATE_ENDS, "Secret", observed.namespace, name, message)


def _make_finding(problem: ProblemReason, kind: str, namespace: str, name: str, message: str) -> Finding:
    return Finding(problem.value, PROBLEM_MESSAGES[problem], kind, ObjectKey(namespace, name), message)


def _find_paths(schema: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    for name, field_ in (schema.get("properties") or {}).items():
        path = f"{parent}.{name}" if parent else name
        yield path
        yield from _find_paths(field_, path)
    items = schema.get("items")
    if isinstance(items, Mapping):
        yield from _find_paths(items, f"{parent}[]")
    values = schema.get("additionalProperties")
    if isinstance(values, Mapping):
        yield from _find_paths(values, f"{parent}[*]")

"""RBAC rules of every process and role; the chart's roles are generated from them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.api.crd import KIND_DEFINITIONS
from tidegate.kube.kinds import KINDS

_READ: Final = ("get", "list", "watch")
_FOLLOW: Final = ("list", "watch")
"""What a cache needs: it never gets a single object by name."""
_APPLY: Final = ("get", "list", "watch", "create", "patch")
"""Server-side apply is a patch; the API server also requires create for an object that does not exist yet."""


class ApiClientProcess(StrEnum):
    """The processes that talk to the API server."""

    CONTROLLERS = "controllers"
    XDS = "xds"
    WEB = "web"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Verbs on resources of one API group."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def to_manifest(self) -> dict[str, list[str]]:
        """Return the rule as in a Role's manifest."""
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


_NAMESPACED_KINDS: Final = ("inferences", "modelaccesses", "featurecomputes")

_POOL_KINDS: Final = ("computepools", "computeoverrides", "allocationdecisions")

CLUSTER_RULES: Final[Mapping[ApiClientProcess, tuple[PolicyRule, ...]]] = {
    ApiClientProcess.CONTROLLERS: (
        # Before it creates children, a controller gets their owner from the API server.
        PolicyRule("tidegate.io", _NAMESPACED_KINDS, _READ),
        PolicyRule("tidegate.io", _POOL_KINDS, _FOLLOW),
        # A pool owns the spares that Inferences share.
        PolicyRule("tidegate.io", ("computepools",), ("get",)),
        PolicyRule(
            "tidegate.io", tuple(f"{kind}/status" for kind in (*_NAMESPACED_KINDS, *_POOL_KINDS)), ("patch",)
        ),
        PolicyRule("tidegate.io", ("allocationdecisions",), ("create", "patch", "delete")),
        # Children are garbage-collected with their owners; we delete those of pipelines whose route was removed.
        PolicyRule("apps", ("deployments",), (*_APPLY, "delete")),
        PolicyRule("batch", ("jobs",), (*_APPLY, "delete")),
        # Kueue's Workloads of our Jobs, if Kueue is installed.
        PolicyRule("kueue.x-k8s.io", ("workloads",), _FOLLOW),
        # Autoscalers with our label get maxReplicas from their pool.
        PolicyRule("autoscaling", ("horizontalpodautoscalers",), (*_FOLLOW, "patch")),
        PolicyRule("", ("configmaps",), (*_APPLY, "delete")),
        PolicyRule("policy", ("poddisruptionbudgets",), (*_APPLY, "delete")),
        # An admission policy allows two annotations: by which Kubernetes chooses the pods that end first, and what spares serve.
        PolicyRule("", ("pods",), (*_FOLLOW, "patch")),
        PolicyRule("", ("nodes",), _FOLLOW),
        PolicyRule("", ("events",), ("create",)),
    ),
    ApiClientProcess.XDS: (
        PolicyRule("tidegate.io", _NAMESPACED_KINDS, _FOLLOW),
        PolicyRule("", ("pods",), _FOLLOW),
    ),
    # Everything else that users read or change is requested with their own rights.
    ApiClientProcess.WEB: (
        PolicyRule("tidegate.io", (*_NAMESPACED_KINDS, *_POOL_KINDS), _FOLLOW),
        PolicyRule("", ("pods",), _FOLLOW),
        PolicyRule("", ("nodes",), _FOLLOW),
        PolicyRule("authentication.k8s.io", ("tokenreviews",), ("create",)),
    ),
}

_CLUSTER_SCOPED: Final = {"tokenreviews", *(kind.plural for kind in KINDS if not kind.namespaced)}


def _filter_by_scope(rules: Iterable[PolicyRule], *, namespaced: bool) -> tuple[PolicyRule, ...]:
    """Return the rules for namespaced resources only, or those for cluster-scoped ones only."""
    selected = (
        PolicyRule(
            rule.group,
            tuple(
                resource
                for resource in rule.resources
                if (resource.partition("/")[0] in _CLUSTER_SCOPED) is not namespaced
            ),
            rule.verbs,
        )
        for rule in rules
    )
    return tuple(rule for rule in selected if rule.resources)


NAMESPACE_RULES: Final[Mapping[ApiClientProcess, tuple[PolicyRule, ...]]] = {
    process: _filter_by_scope(rules, namespaced=True) for process, rules in CLUSTER_RULES.items()
}
"""Rules in each namespace of the chart's watchNamespaces, instead of those for the whole cluster."""

REVIEW_RULES: Final[Mapping[ApiClientProcess, tuple[PolicyRule, ...]]] = {
    ApiClientProcess.WEB: tuple(
        rule
        for rule in _filter_by_scope(CLUSTER_RULES[ApiClientProcess.WEB], namespaced=False)
        if rule.resources == ("tokenreviews",)
    ),
}
"""Cluster-wide rules that remain even then: authentication has no namespace."""


class PeopleRole(StrEnum):
    """Roles for people; the first two are also aggregated into the cluster roles view, edit and admin."""

    VIEW = "view"
    EDIT = "edit"
    POOLS = "pools"


_WRITE: Final = ("create", "update", "patch", "delete", "deletecollection")
_ALLOCATOR_ONLY: Final = frozenset({"allocationdecisions"})
"""Written by the allocator only."""
_OWN_KINDS: Final = tuple(definition.resource for definition in KIND_DEFINITIONS)
_SCALED: Final = tuple(
    f"{definition.resource.PLURAL}/scale" for definition in KIND_DEFINITIONS if definition.scalable
)

PEOPLE_RULES: Final[Mapping[PeopleRole, tuple[PolicyRule, ...]]] = {
    PeopleRole.VIEW: (
        PolicyRule("tidegate.io", tuple(kind.PLURAL for kind in _OWN_KINDS), _READ),
        PolicyRule("tidegate.io", tuple(f"{kind.PLURAL}/status" for kind in _OWN_KINDS), ("get",)),
    ),
    PeopleRole.EDIT: (
        PolicyRule("tidegate.io", tuple(kind.PLURAL for kind in _OWN_KINDS if kind.NAMESPACED), _WRITE),
        PolicyRule("tidegate.io", _SCALED, ("get", "update", "patch")),
    ),
    PeopleRole.POOLS: (
        PolicyRule(
            "tidegate.io",
            tuple(
                kind.PLURAL
                for kind in _OWN_KINDS
                if not kind.NAMESPACED and kind.PLURAL not in _ALLOCATOR_ONLY
            ),
            _WRITE,
        ),
    ),
}
"""Rules for people on our kinds; they may write no status and no decision, which are the controllers'."""

SHARING_RULES: Final[Mapping[ApiClientProcess, tuple[PolicyRule, ...]]] = {
    ApiClientProcess.CONTROLLERS: (
        PolicyRule("", ("nodes",), ("get", "patch")),
        PolicyRule("", ("pods",), ("delete",)),
    ),
}
"""Additional rules where node agents run.

Admission policies of the chart limit them to one taint of a node, and to pods of the MPS control daemon.
"""

RELEASE_RULES: Final[Mapping[ApiClientProcess, tuple[PolicyRule, ...]]] = {
    ApiClientProcess.CONTROLLERS: (
        PolicyRule("coordination.k8s.io", ("leases",), ("get", "create", "update")),
        # Gateways and xDS servers of the release, which watchNamespaces may not include.
        PolicyRule("", ("pods",), _FOLLOW),
    ),
}
"""Rules in the release's own namespace only."""

AUTH_RULES: Final[Mapping[ApiClientProcess, tuple[PolicyRule, ...]]] = {
    ApiClientProcess.XDS: (PolicyRule("", ("secrets",), _FOLLOW),),
}
"""Rules in each namespace of the chart's auth.namespaces only.

A role cannot be limited to labels, so the watch selects by label.
"""

SECRET_RULES: Final[Mapping[ApiClientProcess, tuple[PolicyRule, ...]]] = {
    ApiClientProcess.CONTROLLERS: (PolicyRule("", ("secrets",), ("get", "update")),),
}
"""Rules in the release's namespace for the Secrets of our own certificates and of the dashboard's session key; the chart adds their names.

The chart also creates these Secrets, since a right to create cannot be limited to names.
"""

GATEWAY_TLS_RULES: Final[Mapping[ApiClientProcess, tuple[PolicyRule, ...]]] = {
    ApiClientProcess.XDS: (PolicyRule("", ("secrets",), _FOLLOW),),
}
"""Rules in the release's own namespace for the Secrets of the chart's gateway.tls; the chart adds their names."""

PROXY_RULES: Final[Mapping[ApiClientProcess, tuple[PolicyRule, ...]]] = {
    ApiClientProcess.WEB: (
        PolicyRule("", ("users",), ("impersonate",)),
        PolicyRule("", ("groups",), ("impersonate",)),
    ),
}
"""Cluster-wide rules where a proxy authenticates users; the chart adds the names that it may impersonate."""

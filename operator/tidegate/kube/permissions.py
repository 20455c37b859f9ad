"""What each process may do in the API: the only place where it is said; the chart's roles are generated from it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidegate.api.crd import DEFINITIONS
from tidegate.kube.kinds import KINDS

_READ: Final = ("get", "list", "watch")
_FOLLOW: Final = ("list", "watch")
"""What a cache needs: nobody asks for an object of it by its name."""
_APPLY: Final = ("get", "list", "watch", "create", "patch")
"""Server-side apply is a patch; for an object that does not exist yet the API server asks for create as well."""


class Process(StrEnum):
    """The processes that talk to the API server."""

    CONTROLLERS = "controllers"
    XDS = "xds"
    WEB = "web"


@dataclass(frozen=True, slots=True)
class Rule:
    """Verbs on resources of one API group."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]

    def manifest(self) -> dict[str, list[str]]:
        """The rule as a Role holds it."""
        return {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}


_KINDS: Final = ("inferences", "modelaccesses", "featurecomputes")

_OF_POOLS: Final = ("computepools", "computeoverrides", "allocationdecisions")

CLUSTER_RULES: Final[Mapping[Process, tuple[Rule, ...]]] = {
    Process.CONTROLLERS: (
        # Before it makes anything for one of them, a controller asks whether it is still there.
        Rule("tidegate.io", _KINDS, _READ),
        Rule("tidegate.io", _OF_POOLS, _FOLLOW),
        Rule("tidegate.io", tuple(f"{kind}/status" for kind in (*_KINDS, *_OF_POOLS)), ("patch",)),
        Rule("tidegate.io", ("allocationdecisions",), ("create", "patch", "delete")),
        # All are deleted with their owners; these verbs are for pipelines, which go with a route of theirs.
        Rule("apps", ("deployments",), (*_APPLY, "delete")),
        Rule("batch", ("jobs",), (*_APPLY, "delete")),
        # Kueue's, where it is installed: what it says of our Jobs.
        Rule("kueue.x-k8s.io", ("workloads",), _FOLLOW),
        # Those that are marked get their maximum from the pool.
        Rule("autoscaling", ("horizontalpodautoscalers",), (*_FOLLOW, "patch")),
        Rule("", ("configmaps",), (*_APPLY, "delete")),
        Rule("policy", ("poddisruptionbudgets",), (*_APPLY, "delete")),
        Rule("", ("pods",), _FOLLOW),
        Rule("", ("nodes",), _FOLLOW),
        Rule("", ("events",), ("create",)),
    ),
    Process.XDS: (
        Rule("tidegate.io", _KINDS, _FOLLOW),
        Rule("", ("pods",), _FOLLOW),
    ),
    # What visitors ask for beyond these caches, and what they change, is asked with their own rights.
    Process.WEB: (
        Rule("tidegate.io", (*_KINDS, *_OF_POOLS), _FOLLOW),
        Rule("", ("pods",), _FOLLOW),
        Rule("", ("nodes",), _FOLLOW),
        Rule("authentication.k8s.io", ("tokenreviews",), ("create",)),
    ),
}

_WITHOUT_NAMESPACE: Final = {"tokenreviews", *(kind.plural for kind in KINDS if not kind.namespaced)}


def _split(rules: Iterable[Rule], *, namespaced: bool) -> tuple[Rule, ...]:
    """The half of the rules that is about objects of namespaces, or the one that is not."""
    halves = (
        Rule(
            rule.group,
            tuple(
                each
                for each in rule.resources
                if (each.partition("/")[0] in _WITHOUT_NAMESPACE) is not namespaced
            ),
            rule.verbs,
        )
        for rule in rules
    )
    return tuple(rule for rule in halves if rule.resources)


NAMESPACE_RULES: Final[Mapping[Process, tuple[Rule, ...]]] = {
    process: _split(rules, namespaced=True) for process, rules in CLUSTER_RULES.items()
}
"""Rules in each namespace of the chart's watchNamespaces, instead of those for the whole cluster."""

REVIEW_RULES: Final[Mapping[Process, tuple[Rule, ...]]] = {
    Process.WEB: tuple(
        rule
        for rule in _split(CLUSTER_RULES[Process.WEB], namespaced=False)
        if rule.resources == ("tokenreviews",)
    ),
}
"""Rules for the whole cluster that remain even then: who a visitor is has no namespace."""


class Role(StrEnum):
    """What people may be given; the first two also by the cluster's own roles view, edit and admin."""

    VIEW = "view"
    EDIT = "edit"
    POOLS = "pools"


_WRITE: Final = ("create", "update", "patch", "delete", "deletecollection")
_DECIDED: Final = frozenset({"allocationdecisions"})
"""What the allocator alone writes."""
_OURS: Final = tuple(definition.resource for definition in DEFINITIONS)
_SCALED: Final = tuple(
    f"{definition.resource.PLURAL}/scale" for definition in DEFINITIONS if definition.scalable
)

PEOPLE_RULES: Final[Mapping[Role, tuple[Rule, ...]]] = {
    Role.VIEW: (
        Rule("tidegate.io", tuple(kind.PLURAL for kind in _OURS), _READ),
        Rule("tidegate.io", tuple(f"{kind.PLURAL}/status" for kind in _OURS), ("get",)),
    ),
    Role.EDIT: (
        Rule("tidegate.io", tuple(kind.PLURAL for kind in _OURS if kind.NAMESPACED), _WRITE),
        Rule("tidegate.io", _SCALED, ("get", "update", "patch")),
    ),
    Role.POOLS: (
        Rule(
            "tidegate.io",
            tuple(kind.PLURAL for kind in _OURS if not kind.NAMESPACED and kind.PLURAL not in _DECIDED),
            _WRITE,
        ),
    ),
}
"""What people may do with each of our kinds; nobody writes a status, which is the controllers', nor a decision."""

SHARING_RULES: Final[Mapping[Process, tuple[Rule, ...]]] = {
    Process.CONTROLLERS: (
        Rule("", ("nodes",), ("get", "patch")),
        Rule("", ("pods",), ("delete",)),
    ),
}
"""Rules where node agents run, besides the others. Admission policies of the chart bound them: of a node, the controllers may change
one taint; of pods, they may delete those of the MPS control daemon."""

RELEASE_RULES: Final[Mapping[Process, tuple[Rule, ...]]] = {
    Process.CONTROLLERS: (
        Rule("coordination.k8s.io", ("leases",), ("get", "create", "update")),
        # The gateways and xDS servers beside them, which a release of other namespaces would not see.
        Rule("", ("pods",), _FOLLOW),
    ),
}
"""Rules in the release's own namespace alone."""

AUTH_RULES: Final[Mapping[Process, tuple[Rule, ...]]] = {
    Process.XDS: (Rule("", ("secrets",), _FOLLOW),),
}
"""Rules in each namespace of the chart's auth.namespaces, and nowhere else. No role can be bound to a label: the watch asks for it."""

CERTIFICATE_RULES: Final[Mapping[Process, tuple[Rule, ...]]] = {
    Process.CONTROLLERS: (Rule("", ("secrets",), ("get", "update")),),
}
"""Rules in the release's own namespace, for the Secrets of the certificates that the controllers make: the chart adds their names.
It makes the Secrets too, since a right to create some cannot be bound to names."""

GATEWAY_TLS_RULES: Final[Mapping[Process, tuple[Rule, ...]]] = {
    Process.XDS: (Rule("", ("secrets",), _FOLLOW),),
}
"""Rules in the release's own namespace, for the Secrets that the chart's gateway.tls names: the chart adds their names."""

PROXY_RULES: Final[Mapping[Process, tuple[Rule, ...]]] = {
    Process.WEB: (
        Rule("", ("users",), ("impersonate",)),
        Rule("", ("groups",), ("impersonate",)),
    ),
}
"""Rules for the whole cluster where a proxy says who a visitor is: the chart adds the names that it may name."""

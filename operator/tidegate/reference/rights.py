"""docs/reference/rights.md: what people and processes may do in the Kubernetes API, from the generated roles."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final

from tidegate.kube.permissions import (
    AUTH_RULES,
    CLUSTER_RULES,
    GATEWAY_TLS_RULES,
    PEOPLE_RULES,
    PROXY_RULES,
    RELEASE_RULES,
    SECRET_RULES,
    SHARING_RULES,
    ApiClientProcess,
    PeopleRole,
    PolicyRule,
)
from tidegate.reference.markdown import format_code, render_notice, render_table

VerbsByResource = Mapping[tuple[str, str], frozenset[str]]
"""Verbs by API group and resource."""

_HEAD: Final = (
    render_notice("operator/tidegate/kube/permissions.py")
    + """# Rights

What people and processes may do in the API of a cluster where the chart is installed with its default values.
An empty cell means no rights.
One test checks each cell against a real API server (`kubectl auth can-i --list`). Another one reads the audit log of all tests on a whole cluster: processes use every right there, or in a named test, and request nothing else.

Check the rights of your installation:

```console
$ kubectl auth can-i --list --as system:serviceaccount:tidegate-system:tidegate-web --namespace ads
```

"""
)
_PEOPLE: Final = """## People

The cluster's own roles `view`, `edit` and `admin` include `view`, and `edit` and `admin` include `edit`, unless `rbac.aggregateClusterRoles` is false; `pools` must be bound by its name, `<release>-pools`.
Pools, overrides and decisions are cluster-wide: a ClusterRoleBinding to `view` grants access to them, a RoleBinding does not.
Only the controllers write a status or a decision.

"""
_PROCESSES: Final = """
## Processes

Gateways, node agents and models have no token, and therefore no rights.
With `watchNamespaces` the rights apply in each of these namespaces only, and the cluster-wide ones are dropped, except for TokenReviews.

"""
_RELEASE: Final = """
In the release's own namespace the controllers also have these rights; those to Secrets are for the [certificates](../how-to/certificates.md) that they create, and for the session key of the dashboard:

"""
_OPTIONAL_RIGHTS: Final = """
## Rights that values add

"""


def merge_rules(*rules: Iterable[PolicyRule]) -> VerbsByResource:
    """Combine the verbs of several rules, by API group and resource."""
    verbs_by_resource: dict[tuple[str, str], frozenset[str]] = {}
    for rule in chain.from_iterable(rules):
        for resource in rule.resources:
            key = rule.group, resource
            verbs_by_resource[key] = verbs_by_resource.get(key, frozenset()) | frozenset(rule.verbs)
    return verbs_by_resource


def render_rights_page() -> str:
    """Render docs/reference/rights.md."""
    people = {role.value: merge_rules(PEOPLE_RULES[role]) for role in PeopleRole}
    processes = {process.value: merge_rules(CLUSTER_RULES[process]) for process in ApiClientProcess}
    return (
        _HEAD
        + _PEOPLE
        + _render_matrix(people)
        + _PROCESSES
        + _render_matrix(processes)
        + _RELEASE
        + _render_matrix(
            {
                "controllers": merge_rules(
                    RELEASE_RULES[ApiClientProcess.CONTROLLERS],
                    SECRET_RULES[ApiClientProcess.CONTROLLERS],
                )
            }
        )
        + _OPTIONAL_RIGHTS
        + render_table(("value", "who", "resource", "verbs", "where"), _list_optional_rights())
    )


def _render_matrix(verbs_by_holder: Mapping[str, VerbsByResource]) -> str:
    keys = dict.fromkeys(key for grants in verbs_by_holder.values() for key in grants)
    rows = [
        (_format_resource(*key), *(_format_verbs(grants.get(key, ())) for grants in verbs_by_holder.values()))
        for key in keys
    ]
    return render_table(("resource", *verbs_by_holder), rows)


def _list_optional_rights() -> Iterable[tuple[str, ...]]:
    rules_by_value = (
        ("nodeAgent.enabled", SHARING_RULES, "everywhere; admission policies restrict the writes"),
        ("auth.namespaces", AUTH_RULES, "in these namespaces"),
        ("gateway.tls.secrets", GATEWAY_TLS_RULES, "in the release's namespace, only these Secrets"),
        (
            "web.auth.mode: proxy",
            PROXY_RULES,
            "everywhere, only for users and groups in `web.auth.users` and `web.auth.groups`",
        ),
    )
    for value, rules, scope in rules_by_value:
        for process, granted in rules.items():
            for (group, resource), verbs in merge_rules(granted).items():
                yield (
                    format_code(value),
                    process.value,
                    _format_resource(group, resource),
                    _format_verbs(verbs),
                    scope,
                )


def _format_resource(group: str, resource: str) -> str:
    return format_code(f"{resource}.{group}" if group else resource)


def _format_verbs(verbs: Iterable[str]) -> str:
    return ", ".join(sorted(verbs, key=lambda verb: (_VERB_ORDER.index(verb), verb)))


_VERB_ORDER: Final = (
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "impersonate",
)

"""docs/reference/rights.md: what people and processes may do in the Kubernetes API, from the generated roles."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final

from tidegate.kube.permissions import (
    AUTH_RULES,
    CERTIFICATE_RULES,
    CLUSTER_RULES,
    GATEWAY_TLS_RULES,
    PEOPLE_RULES,
    PROXY_RULES,
    RELEASE_RULES,
    SHARING_RULES,
    Process,
    Role,
    Rule,
)
from tidegate.reference.markdown import code, notice, table

Granted = Mapping[tuple[str, str], frozenset[str]]
"""Verbs by API group and resource."""

_HEAD: Final = (
    notice("operator/tidegate/kube/permissions.py")
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
In the release's own namespace the controllers also have these rights; those to Secrets are for the [certificates](../how-to/certificates.md) that they create:

"""
_MORE: Final = """
## Rights that values add

"""


def matrix(*rules: Iterable[Rule]) -> Granted:
    """Combine the verbs of several rules, by API group and resource."""
    verbs_by_resource: dict[tuple[str, str], frozenset[str]] = {}
    for rule in chain.from_iterable(rules):
        for resource in rule.resources:
            key = rule.group, resource
            verbs_by_resource[key] = verbs_by_resource.get(key, frozenset()) | frozenset(rule.verbs)
    return verbs_by_resource


def rights_page() -> str:
    """Render docs/reference/rights.md."""
    people = {role.value: matrix(PEOPLE_RULES[role]) for role in Role}
    processes = {process.value: matrix(CLUSTER_RULES[process]) for process in Process}
    return (
        _HEAD
        + _PEOPLE
        + _side_by_side(people)
        + _PROCESSES
        + _side_by_side(processes)
        + _RELEASE
        + _side_by_side(
            {
                "controllers": matrix(
                    RELEASE_RULES[Process.CONTROLLERS], CERTIFICATE_RULES[Process.CONTROLLERS]
                )
            }
        )
        + _MORE
        + table(("value", "who", "resource", "verbs", "where"), _added())
    )


def _side_by_side(granted: Mapping[str, Granted]) -> str:
    keys = dict.fromkeys(key for grants in granted.values() for key in grants)
    rows = [(_resource(*key), *(_verbs(grants.get(key, ())) for grants in granted.values())) for key in keys]
    return table(("resource", *granted), rows)


def _added() -> Iterable[tuple[str, ...]]:
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
            for (group, resource), verbs in matrix(granted).items():
                yield code(value), process.value, _resource(group, resource), _verbs(verbs), scope


def _resource(group: str, resource: str) -> str:
    return code(f"{resource}.{group}" if group else resource)


def _verbs(verbs: Iterable[str]) -> str:
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

"""The page of rights: who may do what in the API, as the generated roles say."""

from collections.abc import Iterable, Mapping
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

What people and processes may do in the API of a cluster where the chart is installed with its own values.
An empty cell is a no.
A test asks a real API server for each of these cells (`kubectl auth can-i --list`), and another one reads the audit log of all tests on a whole cluster: every right of a process is used there or by a test that is named, and nothing else is asked for.

Ask yourself:

```console
$ kubectl auth can-i --list --as system:serviceaccount:tidegate-system:tidegate-web --namespace ads
```

"""
)
_PEOPLE: Final = """## People

`view` is in the cluster's own roles `view`, `edit` and `admin`, and `edit` in `edit` and `admin`, unless `rbac.aggregateClusterRoles` is false; `pools` is bound by its name alone, `<release>-pools`.
Pools, overrides and decisions have no namespace: whoever has `view` by a RoleBinding sees none of them, by a ClusterRoleBinding all.
Nobody writes a status or a decision, which are the controllers'.

"""
_PROCESSES: Final = """
## Processes

Gateways, node agents and models have no token, and so no rights.
With `watchNamespaces` these are rights in each of these namespaces, and those to what has no namespace are gone, but for TokenReviews.

"""
_RELEASE: Final = """
The controllers have these in the release's own namespace besides, those to Secrets for the [certificates](../how-to/certificates.md) that they make alone:

"""
_MORE: Final = """
## What values add

"""


def matrix(*rules: Iterable[Rule]) -> Granted:
    """What rules give together."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for rule in (rule for each in rules for rule in each):
        for resource in rule.resources:
            key = rule.group, resource
            found[key] = found.get(key, frozenset()) | frozenset(rule.verbs)
    return found


def rights_page() -> str:
    """docs/reference/rights.md."""
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
    resources = dict.fromkeys(key for each in granted.values() for key in each)
    rows = [(_resource(*key), *(_verbs(each.get(key, ())) for each in granted.values())) for key in resources]
    return table(("resource", *granted), rows)


def _added() -> Iterable[tuple[str, ...]]:
    of_values = (
        ("nodeAgent.enabled", SHARING_RULES, "everywhere; admission policies bound what is written"),
        ("auth.namespaces", AUTH_RULES, "in these namespaces"),
        ("gateway.tls.secrets", GATEWAY_TLS_RULES, "in the release's namespace, these Secrets alone"),
        (
            "web.auth.mode: proxy",
            PROXY_RULES,
            "everywhere, those alone that `web.auth.users` and `web.auth.groups` name",
        ),
    )
    for value, rules, where in of_values:
        for process, granted in rules.items():
            for (group, resource), verbs in matrix(granted).items():
                yield code(value), process.value, _resource(group, resource), _verbs(verbs), where


def _resource(group: str, resource: str) -> str:
    return code(f"{resource}.{group}" if group else resource)


def _verbs(verbs: Iterable[str]) -> str:
    return ", ".join(sorted(verbs, key=lambda verb: (_ORDER.index(verb), verb)))


_ORDER: Final = (
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

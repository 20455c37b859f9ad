"""Who used which right, by an audit log: how requests are read, and what each rule of a role lets through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fixtures.audit_log import Asked, Right, denied, read, rights, unused

USER = "system:serviceaccount:tidegate-system:tidegate-controllers"
ACCOUNT = "tidegate-system:tidegate-controllers"


def an_event(verb: str = "list", **more: Any) -> dict[str, Any]:
    reference = {"resource": "pods", "namespace": "ads", "apiVersion": "v1"}
    return {
        "kind": "Event",
        "verb": verb,
        "requestURI": "/api/v1/namespaces/ads/pods?limit=1000",
        "user": {"username": USER, "groups": ["system:serviceaccounts"]},
        "objectRef": reference,
        "responseStatus": {"metadata": {}, "code": 200},
        **more,
    }


def read_one(event: dict[str, Any]) -> Asked:
    (asked,) = read([json.dumps(event) + "\n"])
    return asked


def asked(verb: str = "list", resource: str = "pods", **more: Any) -> Asked:
    return Asked(USER, verb, resource=resource, **more)


def a_right(verb: str = "list", resource: str = "pods", **more: Any) -> Right:
    return Right(ACCOUNT, "ClusterRole tidegate-controllers", verb, resource=resource, **more)


def test_a_request_is_read_with_its_resource_and_the_answer() -> None:
    reference = {
        "resource": "inferences",
        "subresource": "status",
        "apiGroup": "tidegate.io",
        "namespace": "ads",
        "name": "ctr",
    }
    found = read_one(an_event("patch", objectRef=reference))
    assert found == Asked(USER, "patch", "tidegate.io", "inferences/status", "ads", "ctr")
    assert found.account == ACCOUNT
    assert not found.refused


def test_what_is_no_resource_is_read_by_its_path() -> None:
    event = an_event("get", requestURI="/version?timeout=5s")
    del event["objectRef"]
    assert read_one(event) == Asked(USER, "get", path="/version")


def test_a_refusal_keeps_the_words_and_other_answers_do_not() -> None:
    refused = read_one(an_event(responseStatus={"code": 403, "message": "pods is forbidden"}))
    assert refused.refused
    assert "list pods ads → 403 pods is forbidden" in str(refused)
    missing = read_one(an_event(responseStatus={"code": 404, "message": 'pods "x" not found'}))
    assert (missing.refused, missing.message) == (False, "")


def test_equal_requests_are_one_and_a_line_that_is_being_written_is_none() -> None:
    line = json.dumps(an_event())
    assert len(read([f"{line}\n", f"{line}\n", line[:40]])) == 1


def test_who_acts_for_another_has_impersonated_and_what_follows_is_the_others() -> None:
    someone = {"username": "maria", "groups": ["ml", "system:authenticated"]}
    found = read([json.dumps(an_event(impersonatedUser=someone, responseStatus={"code": 403})) + "\n"])
    assert {(each.user, each.verb, each.resource, each.name) for each in found} == {
        (USER, "impersonate", "users", "maria"),
        (USER, "impersonate", "groups", "ml"),
        (USER, "impersonate", "groups", "system:authenticated"),
        ("maria", "list", "pods", ""),
    }
    assert not [each for each in found if each.refused and each.account], "Maria was refused, not the account"


@pytest.mark.parametrize(
    ("right", "request_"),
    [
        (a_right(), asked()),
        (a_right(namespace="ads"), asked(namespace="ads")),
        (a_right(), asked(namespace="ads")),
        (a_right("*"), asked("watch")),
        (a_right(resource="*"), asked(resource="pods/log")),
        (a_right(resource="*/scale"), asked(resource="inferences/scale")),
        (a_right(group="*"), asked(group="tidegate.io")),
        (a_right(names=("front", "callers")), asked(name="callers")),
        (a_right("create"), asked("create", code=201)),
        (a_right("create"), asked("patch", code=201)),
        (a_right("create"), asked("update", code=201)),
        (a_right("get", "", path="/version"), asked("get", "", path="/version")),
        (a_right("get", "", path="/healthz/*"), asked("get", "", path="/healthz/etcd")),
        (a_right("get"), asked("get", code=404)),
    ],
    ids=str,
)
def test_a_right_serves_what_it_lets_through(right: Right, request_: Asked) -> None:
    assert right.serves(request_)
    assert unused([right], [request_]) == ()


@pytest.mark.parametrize(
    ("right", "request_"),
    [
        (a_right(), asked("watch")),
        (a_right(), asked(resource="nodes")),
        (a_right(), asked(resource="pods/log")),
        (a_right(resource="pods/log"), asked()),
        (a_right(resource="*/scale"), asked(resource="inferences/status")),
        (a_right(resource="*/scale"), asked(resource="inferences")),
        (a_right(), asked(group="metrics.k8s.io")),
        (a_right(namespace="ads"), asked(namespace="shop")),
        (a_right(namespace="ads"), asked()),
        (a_right(names=("front",)), asked(name="back")),
        (a_right(names=("front",)), asked()),
        (a_right("create"), asked("patch")),
        (a_right("patch"), asked("create", code=201)),
        (a_right(), asked(code=403)),
        (a_right("get", "", path="/version"), asked("get", "", path="/versions")),
        (a_right("get", "", path="/healthz/*"), asked("get", "", path="/livez")),
        (a_right("get", "*"), asked("get", "", path="/version")),
        (a_right(), Asked("system:serviceaccount:tidegate-system:tidegate-xds", "list", resource="pods")),
        (a_right(), Asked("admin", "list", resource="pods")),
    ],
    ids=str,
)
def test_a_right_does_not_serve_what_another_lets_through(right: Right, request_: Asked) -> None:
    assert not right.serves(request_)
    assert unused([right], [request_]) == (right,)


def a_role(kind: str, name: str, rules: list[dict[str, Any]], namespace: str = "") -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace}, "rules": rules}


def a_binding(role: str, name: str, namespace: str = "", **subject: str) -> dict[str, Any]:
    who = {"kind": "ServiceAccount", "name": "tidegate-xds", "namespace": "tidegate-system", **subject}
    return {
        "metadata": {"name": "any", "namespace": namespace},
        "roleRef": {"kind": role, "name": name},
        "subjects": [who],
    }


READS = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"], "resourceNames": ["front"]}
]


def test_rights_are_those_of_bound_roles_where_they_are_bound() -> None:
    everywhere = [{"apiGroups": ["", "apps"], "resources": ["pods"], "verbs": ["get"]}]
    paths = [{"nonResourceURLs": ["/version"], "verbs": ["get"]}]
    roles = [
        a_role("ClusterRole", "reads", everywhere + paths),
        a_role("Role", "reads", READS, "ads"),
        a_role("Role", "reads", READS, "shop"),
    ]
    found = rights(
        "tidegate-system",
        [a_binding("ClusterRole", "reads"), a_binding("Role", "reads", "ads")],
        roles,
    )
    account = "tidegate-system:tidegate-xds"
    assert set(found) == {
        Right(account, "ClusterRole reads", "get", "", "pods"),
        Right(account, "ClusterRole reads", "get", "apps", "pods"),
        Right(account, "ClusterRole reads", "get", path="/version"),
        Right(account, "Role reads", "list", "", "secrets", "ads", ("front",)),
        Right(account, "Role reads", "watch", "", "secrets", "ads", ("front",)),
    }


@pytest.mark.parametrize(
    "binding",
    [
        a_binding("ClusterRole", "reads", kind="User"),
        a_binding("ClusterRole", "reads", namespace="ads") | {"subjects": None},
        a_binding("ClusterRole", "reads")
        | {"subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": "b"}]},
        a_binding("ClusterRole", "gone"),
    ],
    ids=["of-a-user", "of-nobody", "of-another-namespace", "of-no-role"],
)
def test_other_bindings_give_our_accounts_nothing(binding: dict[str, Any]) -> None:
    assert rights("tidegate-system", [binding], [a_role("ClusterRole", "reads", READS)]) == ()


def test_a_right_of_no_use_is_named_with_its_role_verb_and_resource() -> None:
    right = Right(ACCOUNT, "Role tidegate-xds-auth", "list", "", "secrets", "ads", ("front",))
    assert str(right) == (
        "Role tidegate-xds-auth lets tidegate-system:tidegate-controllers list secrets named front in ads"
    )


def test_what_is_refused_although_there_is_a_right_to_it_was_asked_of_an_api_server_that_has_just_begun() -> (
    None
):
    words = f'pods is forbidden: User "{USER}" cannot list resource "pods" in API group ""'
    by_roles = asked(namespace="ads", code=403, message=words)
    by_policy = asked(namespace="ads", code=403, message="ValidatingAdmissionPolicy 'x' denied request")
    fine = asked(namespace="ads")

    assert denied([a_right()], [by_roles, by_policy, fine]) == {by_policy}
    assert denied([a_right("watch"), a_right(namespace="shop")], [by_roles, fine]) == {by_roles}

"""Who used which right, by an audit log: how requests are read, and what each rule of a role lets through."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fixtures.audit_log import Asked, Right, denied, read, unused

USER = "system:serviceaccount:tidegate-system:tidegate-controllers"
ACCOUNT = "tidegate-system:tidegate-controllers"


def asked(verb: str = "list", resource: str = "pods", **more: Any) -> Asked:
    return Asked(USER, verb, resource=resource, **more)


def a_right(verb: str = "list", resource: str = "pods", **more: Any) -> Right:
    return Right(ACCOUNT, "ClusterRole tidegate-controllers", verb, resource=resource, **more)


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


def test_a_refusal_is_read_with_the_words_of_the_api_server() -> None:
    event = {
        "verb": "list",
        "requestURI": "/api/v1/namespaces/ads/pods?limit=1000",
        "user": {"username": USER},
        "objectRef": {"resource": "pods", "namespace": "ads", "apiVersion": "v1"},
        "responseStatus": {"code": 403, "message": "pods is forbidden"},
    }
    line = json.dumps(event)
    found = read([f"{line}\n", f"{line}\n", line[:40]])
    assert found == {asked(namespace="ads", code=403, message="pods is forbidden")}
    assert denied([], found) == found


def test_what_is_refused_although_there_is_a_right_to_it_was_asked_of_an_api_server_that_has_just_begun() -> (
    None
):
    words = f'pods is forbidden: User "{USER}" cannot list resource "pods" in API group ""'
    by_roles = asked(namespace="ads", code=403, message=words)
    by_policy = asked(namespace="ads", code=403, message="ValidatingAdmissionPolicy 'x' denied request")
    fine = asked(namespace="ads")

    assert denied([a_right()], [by_roles, by_policy, fine]) == {by_policy}
    assert denied([a_right("watch"), a_right(namespace="shop")], [by_roles, fine]) == {by_roles}

"""What the controllers believe of the proxies when xDS servers answer, fall silent and go."""

from __future__ import annotations

from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.planning.access.proxies import ProxyView
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.refusals import RoutingRefusal
from tidegate.xds.report import (
    ProgrammedReport,
    ReportedHost,
    ReportedProxy,
    ReportedRefusal,
    from_json,
    to_json,
)
from tidegate_controllers.proxies import ProxyReports

KEY = ObjectKey("ads", "ctr")


HOST = HostKey(HostKind.ACCESS, KEY)
UID = "uid-1"


def a_report(
    node: str, generation: int, *, nack: str | None = None, uid: str = UID, answers: bool = True
) -> ProgrammedReport:
    hosts = {str(HOST): ReportedHost(uid=uid, generation=generation, answers=answers)}
    refused = {} if nack is None else {str(HOST): nack}
    proxy = ReportedProxy(node=node, hosts=hosts, refused=refused, nack=nack)
    return ProgrammedReport(revision="r", proxies=(proxy,))


def listening() -> tuple[ProxyReports, list[ObjectKey]]:
    proxies, woken = ProxyReports(tuple), list[ObjectKey]()
    proxies.subscribe(HostKind.ACCESS, woken.append)
    return proxies, woken


def test_proxies_of_a_silent_server_still_count() -> None:
    proxies, _ = listening()
    proxies.take_reports({"x1": a_report("a", 1), "x2": a_report("b", 1)})

    proxies.take_reports({"x1": a_report("a", 2), "x2": None})

    assert proxies.view_object(HOST, UID) == (ProxyView("a", 2), ProxyView("b", 1))


def test_proxies_of_a_server_that_is_gone_do_not() -> None:
    proxies, woken = listening()
    proxies.take_reports({"x1": a_report("a", 1), "x2": a_report("b", 1)})
    woken.clear()

    proxies.take_reports({"x1": a_report("a", 1)})

    assert proxies.view_object(HOST, UID) == (ProxyView("a", 1),)
    assert woken == [KEY]


def test_why_callers_are_not_let_in_is_passed_on_and_wakes_the_object() -> None:
    proxies, woken = listening()
    refused = ReportedRefusal(
        host=str(HOST), uid=UID, generation=1, reason=Reason.CREDENTIALS_INVALID, part="p", message="m"
    )
    quiet = a_report("a", 1)
    loud = quiet.model_copy(update={"refusals": (refused,)})
    proxies.take_reports({"x1": quiet, "x2": quiet})
    woken.clear()

    proxies.take_reports({"x1": quiet, "x2": loud})
    passed_on = RoutingRefusal(KEY, Reason.CREDENTIALS_INVALID, "p", "m")
    assert (proxies.list_refusals(HOST, UID), proxies.list_refusals(HOST, "another")) == ((passed_on,), ())
    assert woken == [KEY]
    proxies.take_reports({"x1": loud, "x2": loud})
    assert woken == [KEY]

    proxies.take_reports({"x1": quiet, "x2": quiet})
    assert proxies.list_refusals(HOST, UID) == ()
    assert woken == [KEY, KEY]


def test_nothing_is_known_when_no_server_has_answered_for_a_while() -> None:
    proxies, woken = listening()
    proxies.take_reports({"x1": a_report("a", 1)})
    woken.clear()

    proxies.take_reports({"x1": None})
    assert proxies.view_object(HOST, UID) == (ProxyView("a", 1),)
    assert woken == []

    for _ in range(20):
        proxies.take_reports({"x1": None})
    assert proxies.view_object(HOST, UID) is None
    assert woken == [KEY]


def test_refusal_by_a_proxy_wakes_those_who_wait() -> None:
    proxies, woken = listening()
    proxies.take_reports({"x1": a_report("a", 1)})
    woken.clear()

    proxies.take_reports({"x1": a_report("a", 1, nack="bad route")})

    assert woken == [KEY]


def test_what_is_refused_of_another_object_is_not_held_against_this_one() -> None:
    proxies, woken = listening()
    proxies.take_reports({"x1": a_report("a", 1)})
    woken.clear()
    other = HostKey(HostKind.ACCESS, ObjectKey("ads", "other"))
    (proxy,) = a_report("a", 1).proxies
    refusing = proxy.model_copy(update={"refused": {str(other): "bad route"}, "nack": "bad route"})

    proxies.take_reports({"x1": ProgrammedReport(revision="r", proxies=(refusing,))})

    assert proxies.view_object(HOST, UID) == (ProxyView("a", 1),)
    assert proxies.view_object(other, UID) == (ProxyView("a", None, "bad route", has_endpoints=False),)
    assert woken == [other.object]


def test_an_object_made_again_under_its_old_name_is_not_taken_for_the_old_one() -> None:
    proxies, _ = listening()
    proxies.take_reports({"x1": a_report("a", 1, uid="of the one that was deleted")})

    assert proxies.view_object(HOST, UID) == (ProxyView("a", None, has_endpoints=False),)


def test_endpoints_that_arrive_later_wake_the_object_and_nobody_of_another_kind() -> None:
    proxies, woken = listening()
    others = list[ObjectKey]()
    proxies.subscribe(HostKind.FEATURES, others.append)
    proxies.take_reports({"x1": a_report("a", 1, answers=False)})
    woken.clear()

    proxies.take_reports({"x1": a_report("a", 1)})

    assert proxies.view_object(HOST, UID) == (ProxyView("a", 1),)
    assert woken == [KEY]
    assert others == []


NEWER = "ranking/ads/ctr"
"""A host of a kind that only a newer xDS server has."""


def a_newer_report(generation: int) -> ProgrammedReport:
    (proxy,) = a_report("a", generation).proxies
    host = ReportedHost(uid="uid-2", generation=generation)
    hosts = {NEWER: host, **proxy.hosts}
    return ProgrammedReport(revision="r", proxies=(proxy.model_copy(update={"hosts": hosts}),))


def test_a_newer_xds_server_that_reports_another_kind_of_host_stops_no_access() -> None:
    proxies, woken = listening()

    proxies.take_reports({"x1": a_newer_report(1)})
    proxies.take_reports({"x1": a_newer_report(2)})

    assert woken == [KEY, KEY]
    assert proxies.view_object(HOST, UID) == (ProxyView("a", 2),)
    assert list(proxies.left_out) == [NEWER]
    assert proxies.left_out[NEWER].startswith("ValueError at ")


def test_a_host_that_was_left_out_does_not_count_once_no_server_reports_it() -> None:
    proxies, woken = listening()
    proxies.take_reports({"x1": a_newer_report(1)})
    assert woken == [KEY]

    proxies.take_reports({"x1": a_report("a", 1)})

    assert (woken, proxies.left_out) == ([KEY], {})


def test_a_refusal_of_another_kind_of_host_stops_no_access_and_counts_while_it_is_reported() -> None:
    proxies, woken = listening()
    reason = Reason.CREDENTIALS_INVALID
    refusals = tuple(ReportedRefusal(host=host, uid=UID, reason=reason) for host in (NEWER, str(HOST)))
    quiet = a_report("a", 1)

    proxies.take_reports({"x1": quiet.model_copy(update={"refusals": refusals})})
    assert woken == [KEY, KEY]
    assert list(proxies.left_out) == [NEWER]
    assert proxies.list_refusals(HOST, UID) == (RoutingRefusal(KEY, reason, "", ""),)

    proxies.take_reports({"x1": quiet})
    assert proxies.left_out == {}


def test_a_reason_that_only_a_newer_xds_server_has_hides_nothing_else_in_its_report() -> None:
    proxies, woken = listening()
    known = ReportedRefusal(host=str(HOST), uid=UID, reason=Reason.CREDENTIALS_INVALID)
    quiet = a_report("a", 1)
    newer = quiet.model_copy(
        update={"refusals": (known, known.model_copy(update={"reason": "KeyRingEmpty"}))}
    )

    proxies.take_reports({"x1": from_json(to_json(newer))})
    assert woken == [KEY, KEY]
    assert proxies.view_object(HOST, UID) == (ProxyView("a", 1),)
    assert proxies.list_refusals(HOST, UID) == (RoutingRefusal(KEY, Reason.CREDENTIALS_INVALID, "", ""),)
    assert proxies.left_out == {str(HOST): "refused for reasons of a newer version: KeyRingEmpty"}

    proxies.take_reports({"x1": quiet})
    assert (proxies.list_refusals(HOST, UID), proxies.left_out) == ((), {})


def test_an_exception_about_one_object_reaches_no_other() -> None:
    proxies, woken = ProxyReports(tuple), list[ObjectKey]()
    other = HostKey(HostKind.ACCESS, ObjectKey("ads", "other"))

    def wake(key: ObjectKey) -> None:
        if key == other.object:
            raise ArithmeticError
        woken.append(key)

    proxies.subscribe(HostKind.ACCESS, wake)
    (proxy,) = a_report("a", 1).proxies
    both = proxy.model_copy(update={"hosts": {str(other): ReportedHost(uid="uid-2"), **proxy.hosts}})

    proxies.take_reports({"x1": ProgrammedReport(revision="r", proxies=(both,))})

    assert woken == [KEY]
    assert list(proxies.left_out) == [str(other)]

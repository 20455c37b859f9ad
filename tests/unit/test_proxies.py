"""What the controllers believe of the proxies when xDS servers answer, fall silent and go."""

from __future__ import annotations

from tidegate.api.meta import ObjectKey
from tidegate.planning.model_access import ProxyView
from tidegate.xds.report import ProxyReport, ReportedProxy
from tidegate_controllers.proxies import Proxies

KEY = ObjectKey("ads", "ctr")


def a_report(node: str, generation: int, *, nack: str | None = None) -> ProxyReport:
    return ProxyReport(
        revision="r", proxies=(ReportedProxy(node=node, accesses={str(KEY): generation}, nack=nack),)
    )


def listening() -> tuple[Proxies, list[ObjectKey]]:
    proxies, woken = Proxies(tuple), list[ObjectKey]()
    proxies.subscribe(woken.append)
    return proxies, woken


def test_proxies_of_a_silent_server_still_count() -> None:
    proxies, _ = listening()
    proxies.take({"x1": a_report("a", 1), "x2": a_report("b", 1)})

    proxies.take({"x1": a_report("a", 2), "x2": None})

    assert proxies.view(KEY) == (ProxyView("a", 2), ProxyView("b", 1))


def test_proxies_of_a_server_that_is_gone_do_not() -> None:
    proxies, woken = listening()
    proxies.take({"x1": a_report("a", 1), "x2": a_report("b", 1)})
    woken.clear()

    proxies.take({"x1": a_report("a", 1)})

    assert proxies.view(KEY) == (ProxyView("a", 1),)
    assert woken == [KEY]


def test_nothing_is_known_while_no_server_answers() -> None:
    proxies, woken = listening()
    proxies.take({"x1": a_report("a", 1)})
    woken.clear()

    proxies.take({"x1": None})

    assert proxies.view(KEY) is None
    assert woken == [KEY]


def test_refusal_by_a_proxy_wakes_those_who_wait() -> None:
    proxies, woken = listening()
    proxies.take({"x1": a_report("a", 1)})
    woken.clear()

    proxies.take({"x1": a_report("a", 1, nack="bad route")})

    assert woken == [KEY]

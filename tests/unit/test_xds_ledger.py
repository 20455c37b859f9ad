"""The ledger, the cache and the report: when is a generation programmed, and what is said about it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from builders.proxy import CLUSTER, CTR_HOST, a_snapshot, host
from tidegate.api.meta import ObjectKey
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import HostState
from tidegate.xds.cache import SnapshotCache
from tidegate.xds.ledger import AckLedger
from tidegate.xds.report import (
    ProgrammedReport,
    ReportedHost,
    ReportedProxy,
    from_json,
    merge_proxies,
    to_json,
)
from tidegate.xds.resources import NO_RESOURCES, Snapshot
from tidegate.xds.stream import RunningState, StreamProgress

CTR = CTR_HOST
FIRST = a_snapshot({"a": 1}, routes_to=["a"], generation=1)
SECOND = a_snapshot({"a": 2}, routes_to=["a"], generation=2)


@pytest.fixture
def ledger() -> AckLedger:
    cache = SnapshotCache()
    cache.set(SECOND)
    return AckLedger(cache)


def a_host(generation: int, *, answers: bool = True) -> ReportedHost:
    return ReportedHost(uid="u", generation=generation, answers=answers)


def progress(
    acked: Snapshot | None, node: str = "gateway-1", *, nack: str | None = None, resumed: bool = False
) -> StreamProgress:
    return StreamProgress(node, acked, nack, resumed, None if acked is None else RunningState(acked))


def test_without_proxies_nothing_is_programmed(ledger: AckLedger) -> None:
    assert not ledger.is_programmed(CTR, 0)
    assert ledger.build_report() == ProgrammedReport(revision=SECOND.revision)


def test_a_generation_is_programmed_once_every_proxy_runs_it_or_a_later_one(ledger: AckLedger) -> None:
    ledger.record_progress(1, progress(SECOND, "one"))
    ledger.record_progress(2, progress(FIRST, "two"))
    assert ledger.is_programmed(CTR, 1)
    assert not ledger.is_programmed(CTR, 2)
    ledger.record_progress(2, progress(SECOND, "two"))
    assert ledger.is_programmed(CTR, 2)
    assert not ledger.is_programmed(CTR, 3)


def test_a_proxy_that_has_accepted_nothing_counts(ledger: AckLedger) -> None:
    ledger.record_progress(1, progress(SECOND, "one"))
    ledger.record_progress(2, progress(None, "two"))
    assert not ledger.is_programmed(CTR, 1)


def test_an_access_that_is_not_in_the_snapshot_is_not_programmed(ledger: AckLedger) -> None:
    ledger.record_progress(1, progress(SECOND))
    assert not ledger.is_programmed(HostKey(HostKind.ACCESS, ObjectKey("ads", "other")), 0)


def test_a_proxy_that_is_gone_counts_no_more(ledger: AckLedger) -> None:
    ledger.record_progress(1, progress(SECOND, "one"))
    ledger.record_progress(2, progress(None, "two"))
    ledger.record_closed(2, "two")
    assert ledger.is_programmed(CTR, 2)
    assert ledger.connected_count == 1


def test_the_end_of_an_older_stream_does_not_end_the_newer(ledger: AckLedger) -> None:
    ledger.record_progress(1, progress(FIRST))
    ledger.record_progress(2, progress(SECOND))
    ledger.record_progress(1, progress(FIRST))
    ledger.record_closed(1, "gateway-1")
    assert ledger.is_programmed(CTR, 2)


def test_a_proxy_that_comes_back_with_what_it_had_still_runs_it(ledger: AckLedger) -> None:
    ledger.record_progress(1, progress(SECOND))
    ledger.record_closed(1, "gateway-1")
    ledger.record_progress(2, progress(None, resumed=True))
    assert ledger.is_programmed(CTR, 2)


def test_a_proxy_that_restarted_runs_nothing(ledger: AckLedger) -> None:
    ledger.record_progress(1, progress(SECOND))
    ledger.record_closed(1, "gateway-1")
    ledger.record_progress(2, progress(None, resumed=False))
    assert not ledger.is_programmed(CTR, 2)


def test_a_stream_without_a_node_is_not_a_proxy_yet(ledger: AckLedger) -> None:
    ledger.record_progress(1, progress(None, ""))
    ledger.record_closed(1, "")
    assert ledger.connected_count == 0


def test_the_report_is_what_the_contract_says(ledger: AckLedger) -> None:
    ledger.record_progress(1, progress(FIRST, nack="bad route"))
    assert json.loads(to_json(ledger.build_report())) == {
        "revision": SECOND.revision,
        "proxies": [
            {
                "node": "gateway-1",
                "revision": FIRST.revision,
                "hosts": {"access/ads/ctr": {"uid": "uid", "generation": 1, "answers": True}},
                "hosts_of": "",
                "refused": {},
                "nack": "bad route",
            }
        ],
        "refusals": [],
    }


def test_a_report_of_a_newer_server_is_read() -> None:
    host = '{"access/ads/ctr": {"uid": "u", "generation": 3, "answers": true, "new": 3}}'
    text = f'{{"revision": "r", "new": 1, "proxies": [{{"node": "a", "hosts": {host}, "new": 2}}]}}'
    (proxy,) = from_json(text).proxies
    assert proxy.hosts == {"access/ads/ctr": a_host(3)}


@pytest.mark.parametrize("refuses", [False, True])
def test_what_many_proxies_run_alike_is_reported_once(ledger: AckLedger, refuses: bool) -> None:
    for number in range(20):
        running = RunningState(SECOND, {CTR: FIRST.hosts[CTR]}) if refuses else RunningState(FIRST)
        ledger.record_progress(
            number, StreamProgress(f"gateway-{number}", FIRST, None, resumed=False, running=running)
        )
    text = to_json(ledger.build_report())
    assert text.count("access/ads/ctr") == 1
    report = from_json(text)
    assert report == ledger.build_report()
    assert len({id(proxy.hosts) for proxy in report.proxies}) == 1


def test_a_report_that_refers_to_a_proxy_it_has_not_is_no_report() -> None:
    with pytest.raises(ValueError, match="no proxy 'gateway-2'"):
        from_json('{"proxies": [{"node": "gateway-1", "hosts_of": "gateway-2"}]}')


def test_a_proxy_that_moved_between_replicas_counts_once_with_all_that_it_accepted() -> None:
    old = ReportedProxy(node="a", revision="r1", hosts={"access/ads/ctr": a_host(2)})
    new = ReportedProxy(node="a", revision="", hosts={})
    other = ReportedProxy(node="b", revision="r1", hosts={"access/ads/ctr": a_host(1)})
    proxies = merge_proxies([ProgrammedReport(proxies=(new, other)), ProgrammedReport(proxies=(old,))])
    assert [(proxy.node, dict(proxy.hosts)) for proxy in proxies] == [
        ("a", {"access/ads/ctr": a_host(2)}),
        ("b", {"access/ads/ctr": a_host(1)}),
    ]


def test_of_two_words_about_one_generation_the_one_that_promises_less_counts() -> None:
    one = ReportedProxy(node="a", hosts={"access/ads/ctr": a_host(2, answers=False)})
    other = ReportedProxy(node="a", hosts={"access/ads/ctr": a_host(2)})
    for reports in ([one, other], [other, one]):
        (proxy,) = merge_proxies([ProgrammedReport(proxies=(report,)) for report in reports])
        assert proxy.hosts == {"access/ads/ctr": a_host(2, answers=False)}


def test_of_what_a_proxy_refused_it_runs_what_it_ran_before_and_of_all_else_the_newest(
    ledger: AckLedger,
) -> None:
    other = host("other")
    newest = a_snapshot({"a": 2}, routes_to=["a"], generation=2, others={"other": ["a"], "third": ["a"]})
    refused = {CTR: "bad route", host("third"): "bad cluster"}
    running = RunningState(newest, {CTR: FIRST.hosts[CTR], host("third"): None})
    ledger.record_progress(1, StreamProgress("gateway-1", FIRST, "bad cluster", False, running, refused))
    assert ledger.is_programmed(other, 2)
    assert ledger.is_programmed(CTR, 1)
    assert not ledger.is_programmed(CTR, 2)
    assert not ledger.is_programmed(host("third"), 0)
    (proxy,) = ledger.build_report().proxies
    assert proxy.revision == FIRST.revision
    assert {name: one.generation for name, one in proxy.hosts.items()} == {str(CTR): 1, str(other): 2}
    assert proxy.refused == {"access/ads/ctr": "bad route", "access/ads/third": "bad cluster"}


def test_that_something_is_refused_is_a_new_edition(ledger: AckLedger) -> None:
    ledger.record_progress(1, progress(FIRST))
    before = ledger.edition
    ledger.record_progress(1, replace(progress(FIRST), rejected={CTR: "bad route"}))
    assert ledger.edition != before


# The cache


def of_bytes(count: int, version: int) -> Snapshot:
    """A snapshot whose one cluster takes so many bytes, different in each version."""
    snapshot = a_snapshot({"a": version})
    big = replace(snapshot.resources[CLUSTER]["a"], body=bytes(count))
    return replace(snapshot, resources={**snapshot.resources, CLUSTER: NO_RESOURCES.with_changes({"a": big})})


def test_the_oldest_go_when_the_older_ones_take_more_than_they_may() -> None:
    cache = SnapshotCache(history_bytes=250)
    kept = [of_bytes(100, version) for version in range(1, 6)]
    for snapshot in kept:
        cache.set(snapshot)
    assert cache.history == tuple(kept[-3:])


def test_what_two_snapshots_share_counts_once() -> None:
    cache = SnapshotCache(history_bytes=250)
    big = of_bytes(1_000, 1)
    for number in range(40):
        shared = a_snapshot({"a": 1}, routes_to=["a"] * (number % 2), others={f"o{number}": []})
        cache.set(replace(shared, resources={**shared.resources, CLUSTER: big.resources[CLUSTER]}))
    assert 4 < len(cache.history) < 32


def test_one_that_is_larger_than_all_that_is_allowed_is_still_the_newest() -> None:
    cache = SnapshotCache(history_bytes=10)
    first, second = of_bytes(100, 1), of_bytes(100, 2)
    cache.set(first)
    cache.set(second)
    assert cache.history == (second,)
    assert cache.snapshot is second


def test_without_much_in_them_the_last_32_are_kept() -> None:
    cache = SnapshotCache()
    for version in range(40):
        cache.set(a_snapshot({"a": version}))
    assert len(cache.history) == 32


def test_only_a_difference_wakes_anybody() -> None:
    cache = SnapshotCache()
    woken: list[int] = []
    unsubscribe = cache.subscribe(lambda: woken.append(1))
    assert cache.snapshot is None
    assert cache.set(FIRST)
    assert not cache.set(a_snapshot({"a": 1}, routes_to=["a"], generation=1))
    assert cache.set(replace(FIRST, hosts={CTR: HostState("uid", 2, answers=True)}))
    assert cache.set(SECOND)
    assert len(woken) == 3
    unsubscribe()
    assert cache.set(FIRST)
    assert len(woken) == 3

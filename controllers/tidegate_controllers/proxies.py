"""Polls every xDS server for what the gateways run, and notifies subscribers of changes."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp
import structlog

from tidegate.api.meta import ObjectKey
from tidegate.api.reasons import Reason
from tidegate.errors import describe_without_message
from tidegate.planning.access.proxies import ProxyView
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.refusals import RoutingRefusal
from tidegate.xds.report import ProgrammedReport, ReportedProxy, ReportedRefusal, from_json, merge_proxies
from tidegate_dataplane.contract.answers import make_bounded_session, read_body

_PERIOD_S: Final = 0.25
"""Pause between two polls: about the delay from the last proxy's ACK to Programmed. A poll itself may take up to 2 s."""
_MAX_SILENT_ROUNDS: Final = 12
"""Rounds in a row without any response, at least 3 s, until the state of the proxies counts as unknown."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=2)
_PATH: Final = "/v2/programmed"
_MAX_REPORT_BYTES: Final = 64 << 20
"""Thirty times the report of 10,000 objects."""

REPORTED_HOST: Final = "ReportedHost"
"""What the log and the metric of left-out objects call a host in a report."""

_NO_PROXY: Final = ReportedProxy(node="")
"""A proxy that does not exist."""

log = structlog.get_logger(__name__)


class ProxyReports:
    """The proxies of all xDS servers, polled continuously."""

    def __init__(self, addresses: Callable[[], Sequence[str]]) -> None:
        """Poll `addresses`, which returns the current `host:port` of every xDS server's report endpoint."""
        self._addresses = addresses
        self._reports: dict[str, ProgrammedReport] = {}
        self._etags: dict[str, str] = {}
        self._silent_rounds = 0
        self._proxies: tuple[ReportedProxy, ...] | None = None
        self._refusals: Mapping[str, frozenset[ReportedRefusal]] = {}
        self._subscribers: defaultdict[HostKind, list[Callable[[ObjectKey], None]]] = defaultdict(list)
        self.left_out: dict[str, str] = {}
        """Reported hosts of which something could not be used, such as a kind or a reason that only a newer version has, with the problem."""

    def subscribe(self, kind: HostKind, subscriber: Callable[[ObjectKey], None]) -> None:
        """Call `subscriber` with the key of every object of `kind` for which a proxy's report changes."""
        self._subscribers[kind].append(subscriber)

    def view_object(self, key: HostKey, uid: str) -> tuple[ProxyView, ...] | None:
        """Return the generation of the object with this `uid` that each connected proxy has accepted, and whether it has endpoints.

        None while no xDS server responds.
        """
        if self._proxies is None:
            return None
        name = str(key)
        return tuple(_make_view(proxy, name, uid) for proxy in self._proxies)

    def list_refusals(self, key: HostKey, uid: str) -> tuple[RoutingRefusal, ...]:
        """Return why the gateways admit no callers, or only some, of the object with this `uid`, as the xDS servers report it.

        Refusals with a reason that only a newer version has are left out and counted in `left_out`.
        """
        refusals = (
            RoutingRefusal(key.object, refusal.reason, refusal.part, refusal.message)
            for refusal in self._refusals.get(str(key), frozenset())
            if refusal.uid == uid and isinstance(refusal.reason, Reason)
        )
        return tuple(sorted(refusals, key=lambda refusal: (refusal.part, refusal.message)))

    async def run(self) -> None:
        """Poll until cancelled."""
        async with make_bounded_session(_TIMEOUT) as session:
            while True:
                await self._poll_servers(session)
                await asyncio.sleep(_PERIOD_S)

    async def _poll_servers(self, session: aiohttp.ClientSession) -> None:
        addresses = self._addresses()
        answers = await asyncio.gather(*(self._poll_server(session, address) for address in addresses))
        self.take_reports(dict(zip(addresses, answers, strict=True)))

    def take_reports(self, answers: Mapping[str, ProgrammedReport | None]) -> None:
        """Take each server's report, None for one that did not respond.

        A silent server's last report counts for as long as its pod exists and another server responds: its proxies still
        run, and without them an object could look programmed everywhere when it is not. If all servers are silent, as
        during an upgrade, the last view stays for _MAX_SILENT_ROUNDS rounds.
        """
        latest = {address: answer or self._reports.get(address) for address, answer in answers.items()}
        self._reports = {address: report for address, report in latest.items() if report is not None}
        self._etags = {address: tag for address, tag in self._etags.items() if address in self._reports}
        before = self._proxies
        self._take_refusals()
        self._silent_rounds = 0 if any(answers.values()) else self._silent_rounds + 1
        if self._silent_rounds == 0:
            self._proxies = merge_proxies(tuple(self._reports.values()))
        elif self._silent_rounds >= _MAX_SILENT_ROUNDS:
            self._proxies = None
        self._notify_subscribers(_find_changed(before or (), self._proxies or ()))

    def _take_refusals(self) -> None:
        before, refused = self._refusals, defaultdict[str, set[ReportedRefusal]](set)
        for report in self._reports.values():
            for refusal in report.refusals:
                refused[refusal.host].add(refusal)
        self._refusals = {host: frozenset(refusals) for host, refusals in refused.items()}
        self._notify_subscribers(
            name for name in before.keys() | refused.keys() if before.get(name) != self._refusals.get(name)
        )

    async def _poll_server(self, session: aiohttp.ClientSession, address: str) -> ProgrammedReport | None:
        try:
            etag = self._etags.get(address) if address in self._reports else None
            headers = {"If-None-Match": etag} if etag else {}
            async with session.get(f"http://{address}{_PATH}", headers=headers) as response:
                response.raise_for_status()
                if response.status == HTTPStatus.NOT_MODIFIED:
                    return self._reports[address]
                report = from_json(await read_body(response, _MAX_REPORT_BYTES))
                self._etags[address] = response.headers.get("ETag", "")
                return report
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("xds_silent", address=address, error=str(error))
            return None

    def _notify_subscribers(self, names: Iterable[str]) -> None:
        for name in names:
            try:
                host = HostKey.parse(name)
                for subscriber in self._subscribers[host.kind]:
                    subscriber(host.object)
            except Exception as error:  # noqa: BLE001  one object's exception stays with that object
                self._leave_out(name, describe_without_message(error))
            else:
                if unknown := self._list_unknown_reasons(name):
                    self._leave_out(name, f"refused for reasons of a newer version: {', '.join(unknown)}")
                else:
                    self.left_out.pop(name, None)

    def _list_unknown_reasons(self, name: str) -> list[str]:
        refusals = self._refusals.get(name, frozenset())
        return sorted({refusal.reason for refusal in refusals if not isinstance(refusal.reason, Reason)})

    def _leave_out(self, name: str, problem: str) -> None:
        if self.left_out.get(name) != problem:
            log.warning("object_left_out", kind=REPORTED_HOST, key=name, why=problem)
        if self._is_reported(name):
            self.left_out[name] = problem
        else:
            self.left_out.pop(name, None)

    def _is_reported(self, name: str) -> bool:
        return name in self._refusals or any(
            name in proxy.hosts or name in proxy.refused for proxy in self._proxies or ()
        )


def _make_view(proxy: ReportedProxy, name: str, uid: str) -> ProxyView:
    host, nack = proxy.hosts.get(name), proxy.refused.get(name)
    if host is None or host.uid != uid:
        return ProxyView(proxy.node, None, nack, has_endpoints=False)
    return ProxyView(proxy.node, host.generation, nack, has_endpoints=host.answers)


def _find_changed(before: Sequence[ReportedProxy], after: Sequence[ReportedProxy]) -> set[str]:
    """Return the objects for which a proxy's accepted generation, endpoints or NACK has changed.

    Proxies that share one map of hosts are compared once.
    """
    old_proxies, new_proxies = ({proxy.node: proxy for proxy in proxies} for proxies in (before, after))
    compared: dict[tuple[int, int], set[str]] = {}
    changed: set[str] = set()
    for node in old_proxies.keys() | new_proxies.keys():
        old, new = old_proxies.get(node, _NO_PROXY), new_proxies.get(node, _NO_PROXY)
        if old is new:
            continue
        hosts_pair = id(old.hosts), id(new.hosts)
        if hosts_pair not in compared:
            compared[hosts_pair] = _compare_entries(old.hosts, new.hosts)
        changed |= compared[hosts_pair]
        changed |= _compare_entries(old.refused, new.refused)
    return changed


def _compare_entries(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    if before is after:
        return set()
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

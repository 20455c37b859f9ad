"""What the gateways run: asks every xDS server, and wakes whoever waits when the answer changes."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import aiohttp
import structlog

from tidegate.api.meta import ObjectKey
from tidegate.planning.proxies import ProxyView
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.xds.report import ProxyReport, ReportedProxy, ReportedRefusal, from_json, proxies_of
from tidegate_dataplane.contract.answers import bounded_session, read_body

_PERIOD_S: Final = 0.25
"""A ModelAccess becomes Programmed this much later than its last proxy acknowledged it, at the most."""
_PATIENCE: Final = 12
"""So many rounds in a row without any answer, at least 3 s: before that, what was true a moment ago counts."""
_TIMEOUT: Final = aiohttp.ClientTimeout(total=2)
_PATH: Final = "/v2/programmed"
_OLD_PATH: Final = "/v1/programmed"
"""Of xDS servers of the release before, in an upgrade."""
_MOST_BYTES: Final = 64 << 20
"""Thirty times the report of 10,000 objects."""

_NONE: Final = ReportedProxy(node="")
"""Of a proxy that is not there."""

log = structlog.get_logger(__name__)


class Proxies:
    """The proxies of all xDS servers, asked again and again."""

    def __init__(self, addresses: Callable[[], Sequence[str]]) -> None:
        """`addresses` gives `host:port` of every xDS server's report endpoint at this moment."""
        self._addresses = addresses
        self._reports: dict[str, ProxyReport] = {}
        self._tags: dict[str, str] = {}
        self._silent_rounds = 0
        self._states: tuple[ReportedProxy, ...] | None = None
        self._refusals: Mapping[str, frozenset[ReportedRefusal]] = {}
        self._subscribers: defaultdict[HostKind, list[Callable[[ObjectKey], None]]] = defaultdict(list)

    def subscribe(self, kind: HostKind, subscriber: Callable[[ObjectKey], None]) -> None:
        """Calls `subscriber` with the key of every object of `kind` of which some proxy now runs something else."""
        self._subscribers[kind].append(subscriber)

    def view(self, host: HostKey, uid: str) -> tuple[ProxyView, ...] | None:
        """What every connected proxy runs of the object with this `uid`; None while no xDS server answers."""
        if self._states is None:
            return None
        name = str(host)
        return tuple(_view(state, name, uid) for state in self._states)

    def refusals(self, host: HostKey, uid: str) -> tuple[ReportedRefusal, ...]:
        """Why some xDS server lets no caller in to the object with this `uid`, or not all of them."""
        refused = self._refusals.get(str(host), frozenset())
        return tuple(
            sorted((one for one in refused if one.uid == uid), key=lambda one: (one.part, one.message))
        )

    async def run(self) -> None:
        """Asks forever."""
        async with bounded_session(_TIMEOUT) as session:
            while True:
                await self._refresh(session)
                await asyncio.sleep(_PERIOD_S)

    async def _refresh(self, session: aiohttp.ClientSession) -> None:
        addresses = self._addresses()
        answers = await asyncio.gather(*(self._ask(session, address) for address in addresses))
        self.take(dict(zip(addresses, answers, strict=True)))

    def take(self, answers: Mapping[str, ProxyReport | None]) -> None:
        """Takes what each server said, None for one that did not answer.

        Of a silent one the last words count for as long as its pod is there and another answers: its proxies are not
        gone, and without them the rest would look like all. All of them may be silent for a moment, as in an upgrade.
        """
        last = {address: answer or self._reports.get(address) for address, answer in answers.items()}
        self._reports = {address: report for address, report in last.items() if report is not None}
        self._tags = {address: tag for address, tag in self._tags.items() if address in self._reports}
        before = self._states
        self._take_refusals()
        self._silent_rounds = 0 if any(answers.values()) else self._silent_rounds + 1
        if self._silent_rounds == 0:
            self._states = proxies_of(tuple(self._reports.values()))
        elif self._silent_rounds >= _PATIENCE:
            self._states = None
        self._wake(_changed(before or (), self._states or ()))

    def _take_refusals(self) -> None:
        before, refused = self._refusals, defaultdict[str, set[ReportedRefusal]](set)
        for report in self._reports.values():
            for one in report.refusals:
                refused[one.host].add(one)
        self._refusals = {host: frozenset(those) for host, those in refused.items()}
        self._wake(
            name for name in before.keys() | refused.keys() if before.get(name) != self._refusals.get(name)
        )

    async def _ask(
        self, session: aiohttp.ClientSession, address: str, path: str = _PATH
    ) -> ProxyReport | None:
        try:
            known = self._tags.get(address) if address in self._reports else None
            headers = {"If-None-Match": known} if known else {}
            async with session.get(f"http://{address}{path}", headers=headers) as response:
                if response.status == HTTPStatus.NOT_FOUND and path != _OLD_PATH:
                    return await self._ask(session, address, _OLD_PATH)
                response.raise_for_status()
                if response.status == HTTPStatus.NOT_MODIFIED:
                    return self._reports[address]
                report = from_json(await read_body(response, _MOST_BYTES))
                self._tags[address] = response.headers.get("ETag", "")
                return report
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("xds_silent", address=address, error=str(error))
            return None

    def _wake(self, names: Iterable[str]) -> None:
        for name in names:
            host = HostKey.parse(name)
            for subscriber in self._subscribers[host.kind]:
                subscriber(host.object)


def _view(proxy: ReportedProxy, name: str, uid: str) -> ProxyView:
    host, nack = proxy.hosts.get(name), proxy.refused.get(name)
    if host is None or host.uid != uid:
        return ProxyView(proxy.node, None, nack, answers=False)
    return ProxyView(proxy.node, host.generation, nack, answers=host.answers)


def _changed(before: Sequence[ReportedProxy], after: Sequence[ReportedProxy]) -> set[str]:
    """The objects of which some proxy runs or refuses something else than before.

    Proxies that share their hosts are compared once for all of them.
    """
    was, now = ({proxy.node: proxy for proxy in proxies} for proxies in (before, after))
    compared: dict[tuple[int, int], set[str]] = {}
    found: set[str] = set()
    for node in was.keys() | now.keys():
        old, new = was.get(node, _NONE), now.get(node, _NONE)
        if old is new:
            continue
        pair = id(old.hosts), id(new.hosts)
        if pair not in compared:
            compared[pair] = _difference(old.hosts, new.hosts)
        found |= compared[pair]
        found |= _difference(old.refused, new.refused)
    return found


def _difference(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    if before is after:
        return set()
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}

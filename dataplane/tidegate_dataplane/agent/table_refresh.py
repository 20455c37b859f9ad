"""Look whether tables have changed, beside the loop, and let the server load a new one in place of the old one."""

import asyncio
import random
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from tidegate_dataplane.agent import state
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.artefacts.receive import DownloadProgress, open_target
from tidegate_dataplane.agent.artefacts.source import OpenSource
from tidegate_dataplane.agent.artefacts.table_convert import ConvertTable, convert_tables, has_room
from tidegate_dataplane.agent.artefacts.table_fetch import (
    StoredTables,
    converted_path,
    fetch_tables,
    identify_table,
)
from tidegate_dataplane.agent.cancellation import run_unless
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.refusals import ArtefactError, NoRoomError, VersionRefusal, WorkEndedError
from tidegate_dataplane.agent.repository import InstalledVersion, ModelRepository
from tidegate_dataplane.agent.state import AgentMemory, LoadVersions, ObservedPod
from tidegate_dataplane.agent.triton import ServerGoneError
from tidegate_dataplane.contract import (
    DesiredState,
    FailureReason,
    FeaturePlan,
    FeatureTable,
    TableProblem,
    TableRefresh,
    TableReport,
)
from tidegate_dataplane.features.errors import FeatureError
from tidegate_dataplane.features.table_file import read_header

log = structlog.get_logger()

CHECK_POLL_S = 1.0
JITTER = 0.1
"""Share of the interval by which checks differ, so that the pods of a FeatureCompute do not read a table at one moment."""
UNREACHABLE_REASONS = frozenset(
    {FailureReason.FETCH_FAILED, FailureReason.ARTEFACT_NOT_FOUND, FailureReason.URI_NOT_ALLOWED}
)

Load = Callable[[LoadVersions], Awaitable[VersionRefusal | None]]
"""Loads versions; returns why the order's version does not serve, None if it does."""


@dataclass(frozen=True, slots=True)
class TableDelivery:
    """Where tables come from, and what converts them."""

    open_source: OpenSource
    convert: ConvertTable


@dataclass(frozen=True, slots=True)
class _ServedTables:
    """The stored version with the tables that serve, if `serves`."""

    order: DesiredState
    plan: FeaturePlan
    facts: ArtefactFacts
    serves: bool

    @property
    def refreshed_tables(self) -> tuple[tuple[FeatureTable, TableRefresh], ...]:
        """Return the tables that are refreshed, with how."""
        return tuple((table, table.refresh) for table in self.plan.tables if table.refresh is not None)


@dataclass(frozen=True, slots=True)
class _NewTable:
    """A table that was fetched and checked, in a version folder that waits to be installed."""

    name: str
    staging: Path
    facts: ArtefactFacts


@dataclass(slots=True)
class _TableChecks:
    """When a table is checked next, and why its newest content was not taken: for good, or until `needed_bytes` are free."""

    next_check_s: float
    refused_identity: str = ""
    needed_bytes: int | None = None
    content_refusal: VersionRefusal | None = None
    """Why that content was refused, whatever has failed since."""
    refusal: VersionRefusal | None = None
    ended_identity: str = ""
    """The content on which a process has ended without a result, once."""

    def refuse_content(self, identity: str, refusal: VersionRefusal, needed_bytes: int | None = None) -> None:
        self.refused_identity, self.needed_bytes = identity, needed_bytes
        self.content_refusal = refusal

    def clear_refusal(self) -> None:
        self.refused_identity, self.needed_bytes, self.ended_identity = "", None, ""
        self.refusal = self.content_refusal = None


class TableRefresher:
    """Refreshes the tables of the pod's plan, one at a time: `watch_tables` fetches a new one, and the loop lets it be loaded."""

    def __init__(
        self,
        pod: str,
        repository: ModelRepository,
        delivery: TableDelivery,
        metrics: AgentMetrics,
        load: Load,
        wake: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wake` lets the loop take a step, in which it calls `load_tables`."""
        self._repository = repository
        self._delivery = delivery
        self._metrics = metrics
        self._load = load
        self._wake = wake
        self._clock = clock
        self._random = random.Random(pod)  # noqa: S311 - spreads checks, and keeps no secret
        self._served: _ServedTables | None = None
        self._order: DesiredState | None = None
        self._fetched_order: DesiredState | None = None
        self._reordered = asyncio.Event()
        self._new: _NewTable | None = None
        self._checks: dict[str, _TableChecks] = {}
        self._keys: dict[str, int] = {}
        self._confirmed = False
        self._next_load_s = 0.0

    async def observe_tables(
        self, desired: DesiredState | None, observed: ObservedPod, memory: AgentMemory
    ) -> ObservedPod:
        """Return the observation with whether the server must load the version's tables."""
        if desired is None or state.content_of(desired) != self._fetched_order:
            self._reordered.set()
        self._served = served = _find_served_tables(desired, observed, memory)
        if served is None:
            return observed
        if served.order != self._order:
            dropped, self._new = self._new, None
            self._order, self._checks = served.order, {}
            await asyncio.to_thread(self._repository.discard_folder, dropped.staging if dropped else None)
        self._metrics.set_tables(self.make_reports())
        # After a start of the agent it is not known which tables the server has: a load without a change does nothing.
        unconfirmed = served.serves and not self._confirmed and self._clock() >= self._next_load_s
        return replace(observed, must_load_tables=self._new is not None or unconfirmed)

    def record_load(self) -> None:
        """Record that the server has just loaded the stored tables."""
        self._confirmed = True

    def make_reports(self) -> tuple[TableReport, ...]:
        """Return which tables serve, and why the newest ones do not."""
        if self._served is None:
            return ()
        reports: list[TableReport] = []
        for table, _ in self._served.refreshed_tables:
            content = self._served.facts.tables.get(table.name)
            if content is None:
                continue
            checks = self._checks.get(table.name)
            refusal = checks.refusal if checks is not None else None
            reports.append(
                TableReport(
                    source=table.name,
                    keys=self._keys.get(_find_sha256(self._served.facts, table)),
                    loaded_s=content.fetched_s,
                    problem=_classify_refusal(refusal) if refusal is not None else None,
                    message=refusal.message if refusal is not None else "",
                )
            )
        return tuple(reports)

    async def watch_tables(self) -> None:
        """Check the tables whenever they are due, until cancelled."""
        while True:
            await self.check_tables()
            await asyncio.sleep(CHECK_POLL_S)

    async def check_tables(self) -> None:
        """Check each table that is due, until one is ready to be loaded."""
        for table, refresh in self._served.refreshed_tables if self._served is not None else ():
            served = self._served
            if served is None or self._new is not None:
                return
            checks = self._checks.get(table.name)
            if checks is None:
                self._checks[table.name] = checks = _TableChecks(self._plan_check(refresh))
                await self._try_work(self._count_served_keys(served, table), table, checks)
            if self._clock() < checks.next_check_s:
                continue
            await self._try_work(self._check_table(served, table, refresh, checks), table, checks)
            checks.next_check_s = self._plan_check(refresh)

    def _plan_check(self, refresh: TableRefresh) -> float:
        return self._clock() + refresh.interval_ms / 1000 * self._random.uniform(1 - JITTER, 1 + JITTER)

    async def _try_work(self, work: Awaitable[object], table: FeatureTable, checks: _TableChecks) -> None:
        """Await the work; whatever fails is a refusal, and the loaded tables serve on."""
        try:
            await work
        except ArtefactError as error:
            self._record_refusal(table.name, checks, error.refusal)
        except OSError as error:
            message = f"table {table.name!r} cannot be stored: {error}"
            self._record_refusal(table.name, checks, VersionRefusal(FailureReason.FETCH_FAILED, message))
        except Exception as error:  # noqa: BLE001 - an unexpected table or server must not end the agent
            place = traceback.extract_tb(error.__traceback__)[-1]
            message = f"table {table.name!r} cannot be read ({type(error).__name__} in {Path(place.filename).name}:{place.lineno})"
            self._record_refusal(table.name, checks, VersionRefusal(FailureReason.ARTEFACT_INVALID, message))

    async def _check_table(
        self, served: _ServedTables, table: FeatureTable, refresh: TableRefresh, checks: _TableChecks
    ) -> None:
        """Fetch and check a table that its source has changed; raise ArtefactError if it cannot be taken."""
        self._fetched_order = served.order
        self._reordered.clear()
        identity = await identify_table(table, served.order, self._delivery.open_source)
        present = served.facts.tables.get(table.name)
        if present is not None and present.identity == identity:
            checks.clear_refusal()
            return
        refusal = checks.content_refusal
        if refusal is not None and await asyncio.to_thread(self._is_refused, identity, checks):
            raise ArtefactError(refusal.reason, refusal.message)
        try:
            new = await run_unless(self._reordered, self._fetch_table(served, table, refresh))
        except NoRoomError as error:
            checks.refuse_content(identity, error.refusal, error.needed_bytes)
            raise
        except WorkEndedError as error:
            if checks.ended_identity == identity:
                checks.refuse_content(identity, error.refusal)
            # Once, it may be the other work of the node.
            checks.ended_identity = identity
            raise
        except ArtefactError as error:
            if not error.refusal.is_transient:
                checks.refuse_content(identity, error.refusal)
            raise
        if new is not None and served.order != self._order:
            # There is another order since the table was fetched.
            await asyncio.to_thread(self._repository.discard_folder, new.staging)
            return
        self._new = new
        if new is None:
            checks.clear_refusal()
        else:
            self._wake()

    def _is_refused(self, identity: str, checks: _TableChecks) -> bool:
        """Return whether a table with this content was refused, and would be again."""
        if identity != checks.refused_identity:
            return False
        return checks.needed_bytes is None or not has_room(self._repository.models_dir, checks.needed_bytes)

    async def _fetch_table(
        self, served: _ServedTables, table: FeatureTable, refresh: TableRefresh
    ) -> _NewTable | None:
        """Fetch and check a table; return None if its content is that of the loaded one, or if there is another order."""
        order, progress = served.order, DownloadProgress()
        stored = self._repository.find_tables(order, served.facts, table.name)
        staging = await asyncio.to_thread(self._repository.make_staging)
        new: _NewTable | None = None
        try:
            target = open_target(order, staging, progress, partial_dir=self._repository.partial_dir)
            facts = await fetch_tables(order, target, self._delivery.open_source, stored)
            if facts.digest == served.facts.digest:
                await asyncio.to_thread(self._record_identity, served, table, facts)
                return None
            facts = await convert_tables(order, facts, staging, self._delivery.convert)
            keys = await asyncio.to_thread(_count_keys, table, staging)
            if served.serves:
                await self._compare_keys(served, table, refresh, keys)
            if served.order != self._order:
                return None
            self._keys[_find_sha256(facts, table)] = keys
            new = _NewTable(table.name, staging, facts)
        finally:
            self._metrics.fetched_bytes.inc(progress.done)
            if new is None:
                await asyncio.to_thread(self._repository.discard_folder, staging)
        return new

    def _record_identity(self, served: _ServedTables, table: FeatureTable, facts: ArtefactFacts) -> None:
        """Record that the source has the loaded content under another identity."""
        content = facts.tables[table.name]
        present = served.facts.tables.get(table.name, content)
        tables = {**facts.tables, table.name: content.model_copy(update={"fetched_s": present.fetched_s})}
        facts = served.facts.model_copy(update={"tables": tables})
        self._repository.update_record(served.order, facts)
        self._served = replace(served, facts=facts)

    async def _compare_keys(
        self, served: _ServedTables, table: FeatureTable, refresh: TableRefresh, keys: int
    ) -> None:
        """Raise ArtefactError if the new table has too few or too many keys."""
        loaded = await self._count_served_keys(served, table)
        if keys * 100 < loaded * refresh.min_keys_percent:
            raise ArtefactError(
                FailureReason.ARTEFACT_INVALID,
                f"table {table.name!r} has {keys:,} keys and the loaded one {loaded:,}, so it has less than "
                f"{refresh.min_keys_percent} % of them (minKeysPercent): publish the complete table, or lower minKeysPercent",
            )
        most_percent = refresh.max_keys_percent
        # No percentage of an empty table would let a table with keys through.
        if most_percent is not None and 0 < loaded * most_percent < keys * 100:
            raise ArtefactError(
                FailureReason.ARTEFACT_INVALID,
                f"table {table.name!r} has {keys:,} keys and the loaded one {loaded:,}, so it has more than "
                f"{most_percent} % of them (maxKeysPercent): publish the right table, or raise maxKeysPercent",
            )

    async def _count_served_keys(self, served: _ServedTables, table: FeatureTable) -> int:
        sha256 = _find_sha256(served.facts, table)
        if sha256 not in self._keys:
            stored: StoredTables = self._repository.find_tables(served.order, served.facts, table.name)
            self._keys[sha256] = await asyncio.to_thread(_count_keys, table, stored.folder)
        return self._keys[sha256]

    async def load_tables(self, action: LoadVersions) -> bool:
        """Let the server load the new table, or once more the stored ones; return whether it did.

        Until it has, and if it does not, it answers from the tables that it has.
        """
        new = self._new
        try:
            return await self._replace_table(new, action)
        finally:
            # Until now nothing was checked: a check compares with the tables that serve.
            if self._new is new:
                self._new = None

    async def _replace_table(self, new: _NewTable | None, action: LoadVersions) -> bool:
        started, served = self._clock(), self._served
        installed, refusal = await self._install_table(new, action)
        if refusal is None:
            if new is not None:
                self._served = replace(served, facts=new.facts) if served is not None else None
                await asyncio.to_thread(
                    self._repository.discard_folder, installed.displaced if installed else None
                )
                self._checks[new.name].clear_refusal()
                stored = {file.sha256 for file in new.facts.files}
                self._keys = {sha256: keys for sha256, keys in self._keys.items() if sha256 in stored}
                seconds = round(self._clock() - started, 3)
                log.info("table_loaded", source=new.name, sha256=new.facts.digest, seconds=seconds)
            return True
        self._confirmed, self._next_load_s = False, self._clock() + state.SWITCH_RETRY_S
        if installed is not None and served is not None:
            await asyncio.to_thread(self._repository.restore_displaced, installed, served.facts)
        if new is None:
            log.warning("tables_not_loaded", reason=refusal.reason, message=refusal.message)
            return False
        checks = self._checks[new.name]
        if not refusal.is_transient and not _is_first_end(refusal, checks.refusal):
            checks.refuse_content(new.facts.tables[new.name].identity, refusal)
        self._record_refusal(new.name, checks, refusal)
        await asyncio.to_thread(self._repository.discard_folder, new.staging)
        return False

    async def _install_table(
        self, new: _NewTable | None, action: LoadVersions
    ) -> tuple[InstalledVersion | None, VersionRefusal | None]:
        """Return the version that was installed, and why the server does not serve it."""
        installed: InstalledVersion | None = None
        try:
            if new is not None:
                installed = await asyncio.to_thread(
                    self._repository.install_version, new.staging, action.order, new.facts
                )
            return installed, await self._load(action)
        except OSError as error:
            message = f"the new table cannot be stored: {error}"
            return installed, VersionRefusal(FailureReason.FETCH_FAILED, message)
        except ServerGoneError:
            message = "Triton ended while it loaded the new table: out of memory, if no other cause is in its log; raise spec.resources.memory"
            return installed, VersionRefusal(FailureReason.SERVER_ENDED, message)

    def _record_refusal(self, source: str, checks: _TableChecks, refusal: VersionRefusal) -> None:
        problem = _classify_refusal(refusal)
        self._metrics.table_refusals.labels(source, problem).inc()
        if refusal != checks.refusal:
            log.warning("table_refused", source=source, reason=refusal.reason, message=refusal.message)
        checks.refusal = refusal


def _find_served_tables(
    desired: DesiredState | None, observed: ObservedPod, memory: AgentMemory
) -> _ServedTables | None:
    """Return the stored version of the order if one of its tables is refreshed."""
    if desired is None or desired.plan is None:
        return None
    order = state.content_of(desired)
    facts = observed.stored.get(order.model, {}).get(order.version)
    if facts is None or not facts.matches_order(order):
        return None
    serves = memory.proven == order and state.serves_order(order, observed.server)
    served = _ServedTables(order, desired.plan, facts, serves and order.model not in observed.broken)
    return served if served.refreshed_tables else None


def _is_first_end(refusal: VersionRefusal, earlier: VersionRefusal | None) -> bool:
    """Return whether the server ended under a load for the first time, which may be a coincidence."""
    ended = refusal.reason is FailureReason.SERVER_ENDED
    return ended and (earlier is None or earlier.reason is not FailureReason.SERVER_ENDED)


def _classify_refusal(refusal: VersionRefusal) -> TableProblem:
    if refusal.reason in UNREACHABLE_REASONS:
        return TableProblem.TABLE_UNREACHABLE
    return TableProblem.TABLE_REFUSED


def _find_sha256(facts: ArtefactFacts, table: FeatureTable) -> str:
    return next(file.sha256 for file in facts.files if file.path == converted_path(table.name))


def _count_keys(table: FeatureTable, folder: Path) -> int:
    """Return the number of keys of a converted table in a version folder.

    Raises:
        ArtefactError: ArtefactInvalid if it is damaged.
    """
    try:
        with (folder / converted_path(table.name)).open("rb") as file:
            return read_header(file).rows
    except FeatureError as error:
        message = f"the converted table {table.name!r} cannot be read: {error}"
        raise ArtefactError(FailureReason.ARTEFACT_INVALID, message) from error

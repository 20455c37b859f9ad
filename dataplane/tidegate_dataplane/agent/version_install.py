"""Fetch a version and put it in its place; the one that it displaces comes back unless the new one serves."""

import asyncio
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.artefacts.fetch import fetch_artefact
from tidegate_dataplane.agent.artefacts.receive import DownloadProgress
from tidegate_dataplane.agent.artefacts.source import OpenSource
from tidegate_dataplane.agent.artefacts.table_convert import ConvertTable
from tidegate_dataplane.agent.cancellation import run_unless
from tidegate_dataplane.agent.metrics import AgentMetrics
from tidegate_dataplane.agent.refusals import ArtefactError, NoRoomError, VersionRefusal
from tidegate_dataplane.agent.repository import InstalledVersion, ModelRepository
from tidegate_dataplane.contract import DesiredState, FailureReason

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FetchFailure:
    """Why a version was not installed; `is_slow` if it is not worth another download every minute."""

    refusal: VersionRefusal
    is_slow: bool = False


@dataclass(frozen=True, slots=True)
class _UnprovenVersion:
    """A version that replaced another with the same number; `before` describes the replaced one."""

    order: DesiredState
    installed: InstalledVersion
    before: ArtefactFacts


class VersionInstaller:
    """Installs the versions of orders; at most one of them is unproven."""

    def __init__(
        self,
        repository: ModelRepository,
        open_source: OpenSource,
        convert: ConvertTable,
        metrics: AgentMetrics,
        changed: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` ends a download: another order has arrived."""
        self._repository, self._open_source, self._convert = repository, open_source, convert
        self._metrics, self._changed, self._clock = metrics, changed, clock
        self._unproven: _UnprovenVersion | None = None

    async def fetch_version(
        self, order: DesiredState, before: ArtefactFacts | None, progress: DownloadProgress
    ) -> FetchFailure | None:
        """Fetch and install the order's version, which may replace `before`.

        Return why that failed; None if it is installed, or another order has arrived.
        """
        started = self._clock()
        staging: Path | None = None
        try:
            staging = await asyncio.to_thread(self._repository.make_staging)
            partial_dir = self._repository.partial_dir
            facts = await run_unless(
                self._changed,
                fetch_artefact(
                    order,
                    staging,
                    self._open_source,
                    progress,
                    partial_dir=partial_dir,
                    convert=self._convert,
                ),
            )
            if facts is None:
                log.info(
                    "fetch_dropped", model=order.model, version=order.version, reason="another order arrived"
                )
                return None
            installed = await asyncio.to_thread(self._repository.install_version, staging, order, facts)
        except ArtefactError as error:
            return FetchFailure(error.refusal, is_slow=isinstance(error, NoRoomError))
        except OSError as error:
            message = f"{order.uri}/{order.version} cannot be stored: {error}"
            return FetchFailure(VersionRefusal(FailureReason.FETCH_FAILED, message))
        except Exception as error:  # noqa: BLE001 - see below
            # Whatever an unexpected artefact or server causes, the current version goes on serving.
            place = traceback.extract_tb(error.__traceback__)[-1]
            log.error(
                "fetch_crashed", error=type(error).__name__, file=Path(place.filename).name, line=place.lineno
            )
            message = f"{order.uri}/{order.version} cannot be read ({type(error).__name__}): report it, with the agent's log"
            return FetchFailure(VersionRefusal(FailureReason.ARTEFACT_INVALID, message))
        finally:
            self._metrics.fetched_bytes.inc(progress.done)
            await asyncio.to_thread(self._repository.discard_folder, staging)
        if before is not None:
            self._unproven = _UnprovenVersion(order, installed, before)
        seconds = self._clock() - started
        self._metrics.fetch_seconds.observe(seconds)
        log.info(
            "artefact_fetched",
            model=order.model,
            version=order.version,
            bytes=progress.done,
            resumed=progress.resumed,
            sha256=facts.digest,
            seconds=round(seconds, 3),
        )
        return None

    async def keep_version(self, order: DesiredState) -> None:
        """Discard what the order's version displaced, since it serves."""
        if self._unproven is not None and self._unproven.order == order:
            await asyncio.to_thread(self._repository.discard_folder, self._unproven.installed.displaced)
            self._unproven = None

    async def restore_displaced(self, order: DesiredState | None = None) -> None:
        """Restore the version that an unproven one displaced, unless that is of `order`."""
        unproven = self._unproven
        if unproven is not None and unproven.order != order:
            await asyncio.to_thread(self._repository.restore_displaced, unproven.installed, unproven.before)
            self._unproven = None

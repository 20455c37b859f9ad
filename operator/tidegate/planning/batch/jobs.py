"""Parse the Job of a batch into what planners need: its run, its progress, and how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.resources.names import POOL_LABEL, RUN_LABEL, TIER_LABEL, parse_slices


@dataclass(frozen=True, slots=True)
class JobView:
    """Facts about a Job that decide about its run."""

    key: ObjectKey
    uid: str
    run: str = ""
    parallelism: int = 0
    """Pods that it may have at once."""
    done_shards: frozenset[int] = frozenset()
    """Shards whose pod succeeded."""
    failed_shards: frozenset[int] = frozenset()
    """Shards that have failed permanently."""
    complete: bool = False
    failure_reason: str = ""
    """The reason of its condition Failed; empty if it has not failed."""
    failure_message: str = ""
    """The message of its condition Failed."""
    started_at: datetime | None = None
    completed_at: datetime | None = None
    ended_at: datetime | None = None
    """When it completed or failed."""
    deleting: bool = False
    suspended: bool = False
    """Whether it has no pods because Kueue, or a person, suspended it."""
    pool: str = ""
    """The pool on whose slices its pods run; empty for none."""
    slices: int = 0
    """Slices of each pod."""
    tier: str = ""

    @property
    def finished(self) -> bool:
        """Return whether it will run no more pods."""
        return self.complete or bool(self.failure_reason)

    @property
    def replicas(self) -> int:
        """Return the desired number of pods."""
        return 0 if self.finished else self.parallelism


def parse_job(body: Mapping[str, Any]) -> JobView:
    """Parse a Job as the API server returns it."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    conditions = {
        condition["type"]: condition
        for condition in status.get("conditions") or ()
        if condition.get("status") == "True"
    }
    failure = conditions.get("Failed", {})
    labels = spec["template"]["metadata"].get("labels") or {}
    return JobView(
        key=ObjectKey(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        run=labels.get(RUN_LABEL, ""),
        parallelism=spec.get("parallelism", 1),
        done_shards=parse_indexes(status.get("completedIndexes", "")),
        failed_shards=parse_indexes(status.get("failedIndexes", "")),
        complete="Complete" in conditions,
        failure_reason=failure.get("reason", "Failed") if failure else "",
        failure_message=failure.get("message", ""),
        started_at=_parse_time(status.get("startTime")),
        completed_at=_parse_time(status.get("completionTime")),
        ended_at=_parse_time(status.get("completionTime") or failure.get("lastTransitionTime")),
        deleting="deletionTimestamp" in metadata,
        suspended=spec.get("suspend", False),
        pool=labels.get(POOL_LABEL, ""),
        slices=parse_slices(labels),
        tier=labels.get(TIER_LABEL, ""),
    )


_MAX_INDEXES: Final = 1_000_000
"""Ten times the shards that Kubernetes tracks; without a bound a few bytes could fill the memory."""


def parse_indexes(text: str) -> frozenset[int]:
    """Parse completion indexes as a Job's status writes them: `1,3-5`.

    Raises ValueError for any other text, and for more than a million indexes.
    """
    result: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        part_indexes = range(int(first), int(last or first) + 1)
        if len(result) + len(part_indexes) > _MAX_INDEXES:
            message = f"more than {_MAX_INDEXES} indexes"
            raise ValueError(message)
        result.update(part_indexes)
    return frozenset(result)


def _parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None

"""The Job of a batch as planners see it: which run it is, how far, and how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.resources.names import POOL_LABEL, RUN_LABEL, TIER_LABEL, parse_slices


@dataclass(frozen=True, slots=True)
class JobView:
    """The facts about a Job that decide what becomes of its run."""

    key: ObjectKey
    uid: str
    run: str = ""
    parallelism: int = 0
    """Pods that it may have at once."""
    done: frozenset[int] = frozenset()
    """Shards whose pod ended well."""
    failed: frozenset[int] = frozenset()
    """Shards that it has given up."""
    complete: bool = False
    gave_up: str = ""
    """Why it has failed as a whole, in Kubernetes' word; empty while it has not."""
    said: str = ""
    """And in its words."""
    started: datetime | None = None
    completed: datetime | None = None
    ended: datetime | None = None
    """When it completed or gave up."""
    deleting: bool = False
    suspended: bool = False
    """Whether it has no pods since somebody, such as Kueue, has not let it begin or has stopped it."""
    pool: str = ""
    """The pool on whose slices its pods run; empty for none."""
    slices: int = 0
    """Slices of each pod."""
    tier: str = ""

    @property
    def finished(self) -> bool:
        """Whether no pod of it will run any more."""
        return self.complete or bool(self.gave_up)

    @property
    def replicas(self) -> int:
        """Pods that it is to have."""
        return 0 if self.finished else self.parallelism


def job_view(body: Mapping[str, Any]) -> JobView:
    """Reads a Job as the API server gives it."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or () if one.get("status") == "True"}
    ended = conditions.get("Failed", {})
    labels = spec["template"]["metadata"].get("labels") or {}
    return JobView(
        key=ObjectKey(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        run=labels.get(RUN_LABEL, ""),
        parallelism=spec.get("parallelism", 1),
        done=indexes(status.get("completedIndexes", "")),
        failed=indexes(status.get("failedIndexes", "")),
        complete="Complete" in conditions,
        gave_up=ended.get("reason", "Failed") if ended else "",
        said=ended.get("message", ""),
        started=_time(status.get("startTime")),
        completed=_time(status.get("completionTime")),
        ended=_time(status.get("completionTime") or ended.get("lastTransitionTime")),
        deleting="deletionTimestamp" in metadata,
        suspended=spec.get("suspend", False),
        pool=labels.get(POOL_LABEL, ""),
        slices=parse_slices(labels),
        tier=labels.get(TIER_LABEL, ""),
    )


_MOST_INDEXES: Final = 1_000_000
"""Ten times the shards that Kubernetes follows one by one; a few bytes could otherwise stand for all the memory there is."""


def indexes(text: str) -> frozenset[int]:
    """Completion indexes as a Job's status writes them: `1,3-5`. Raises ValueError for anything else, and for more than a million."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        several = range(int(first), int(last or first) + 1)
        if len(found) + len(several) > _MOST_INDEXES:
            message = f"more than {_MOST_INDEXES} indexes"
            raise ValueError(message)
        found.update(several)
    return frozenset(found)


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None

"""Keeps requests from pods on lost nodes that lacked their compiler of graphs before: no other sign of the loss reaches a pod."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tidegate.api.meta import ObjectKey
from tidegate.planning.pods import PodView


def read_clock() -> datetime:
    """Return the time now."""
    return datetime.now(UTC)


class RestartDeadlines:
    """The times at which pods count as not ready, because their compilers should have been restarted by then."""

    def __init__(self, clock: Callable[[], datetime] = read_clock) -> None:
        self._clock = clock
        self._due: dict[ObjectKey, datetime] = {}

    def put_pod(self, key: ObjectKey, pod: PodView | None) -> None:
        """Take a pod that has changed; None if it was deleted."""
        self._due.pop(key, None)
        if pod is not None and pod.restart_due is not None:
            self._due[key] = pod.restart_due

    def take_passed(self) -> Sequence[ObjectKey]:
        """Return the pods whose deadline has passed, each once."""
        now = self._clock()
        passed = [key for key, due in self._due.items() if due <= now]
        for key in passed:
            del self._due[key]
        return passed

    def find_wait_s(self) -> float | None:
        """Return the seconds until the next deadline; None if there is none."""
        return max((min(self._due.values()) - self._clock()).total_seconds(), 0.0) if self._due else None

    def apply_deadlines(self, pods: Iterable[PodView]) -> tuple[PodView, ...]:
        """Return the pods, those whose deadline has passed as not ready."""
        now = self._clock()
        return tuple(
            replace(pod, ready=False) if pod.restart_due is not None and pod.restart_due <= now else pod
            for pod in pods
        )

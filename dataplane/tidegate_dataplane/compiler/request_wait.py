"""Let the compilation of a graph wait a while for requests of clients, so that it is proved on them before it serves."""

import time
from collections.abc import Callable

from tidegate_dataplane.compiler.exchange import CompileFolder, CompileJob
from tidegate_dataplane.sampling.kept_requests import MAX_FILES


class RequestWait:
    """The wait for the requests of the ordered version, which serves as published meanwhile."""

    def __init__(
        self, folder: CompileFolder, limit_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`limit_s` bounds the wait, since a version may get no request."""
        self._folder, self._limit_s, self._clock = folder, limit_s, clock
        self._digest, self._end_s = "", 0.0

    def is_over(self, job: CompileJob) -> bool:
        """Return whether runners have kept as many requests as they keep at once, or the wait has taken too long.

        An attempt that is repeated does not wait again.
        """
        if job.digest != self._digest:
            self._digest, self._end_s = job.digest, self._clock() + self._limit_s
        self._folder.ask_for_requests(job.digest)
        return (
            self._clock() >= self._end_s
            or self._folder.count_attempts(job.digest) > 0
            or len(self._folder.list_requests(job.digest)) >= MAX_FILES
        )

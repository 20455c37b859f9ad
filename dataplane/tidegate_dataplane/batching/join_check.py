"""Check on live requests whether an execution of joined requests gives each the answer that it gets alone.

Triton's dynamic batcher passes several requests to the runner at a time, and the runner joins their rows into one execution.
"""

from collections.abc import Sequence
from enum import StrEnum

from tidegate_dataplane.batching.arrays import Answer, OutputScales

TRIALS = 8
"""Number of first executions in which each request is also executed alone, and gets the answer of that execution."""
CHECK_EVERY = 500
"""After the trials, every 500th execution also executes one of its requests alone."""


class JoinState(StrEnum):
    """What is known about one way to join."""

    ON_TRIAL = "OnTrial"
    PROVED = "Proved"
    REFUSED = "Refused"


class JoinCheck:
    """One way to join requests of one model version: on trial, then used and checked now and then, or refused for good.

    Rows may depend on each other, as in a model that ranks the rows of a request, and padding may count, as in a mean
    without a mask. Such a model gets no joined executions.
    """

    def __init__(self, scales: OutputScales | None = None) -> None:
        self.state = JoinState.ON_TRIAL
        self.mismatches = 0
        """Comparisons in which a joined answer differed from the request's own; a failed execution compares nothing."""
        self._scales = scales if scales is not None else OutputScales()
        self._agreed = 0
        self._failed = 0
        self._joined = 0

    def pick_requests(self, count: int) -> range:
        """Return the positions of the joined requests to execute alone as well."""
        self._joined += 1
        if self.state is JoinState.ON_TRIAL:
            return range(count)
        if self._joined % CHECK_EVERY:
            return range(0)
        position = self._joined // CHECK_EVERY % count
        return range(position, position + 1)

    def compare_answers(self, pairs: Sequence[tuple[Answer, Answer]]) -> bool:
        """Compare each answer alone with the joined one; update the state, and return whether the joined answers may be used."""
        if not all(self._scales.is_same_answer(alone, joined) for alone, joined in pairs):
            self.mismatches += 1
            self.state = JoinState.REFUSED
            return False
        if self.state is JoinState.ON_TRIAL and pairs:
            self._agreed += 1
            self.state = JoinState.PROVED if self._agreed == TRIALS else JoinState.ON_TRIAL
        return True

    def record_failure(self) -> None:
        """Count a joined execution that failed while each request alone did not; it may have been too large."""
        self._failed += 1
        if self.state is JoinState.ON_TRIAL and self._failed == TRIALS:
            self.state = JoinState.REFUSED

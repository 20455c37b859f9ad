"""Whether the answers of joined requests are those that each gets alone, decided on the requests themselves."""

from collections.abc import Sequence
from enum import StrEnum

from tidegate_dataplane.batching.arrays import Answer, OutputScales

TRIALS = 8
"""Executions for which all requests are executed alone as well, and answered by that."""
CHECK_EVERY = 500
"""Of so many executions after the trials, one has one of its requests executed alone as well."""


class JoinState(StrEnum):
    """What is known about one way to join."""

    TRIED = "Tried"
    PROVED = "Proved"
    REFUSED = "Refused"


class JoinCheck:
    """One way to join requests of one model version: on trial, then used and checked now and then, or refused for good.

    Rows may depend on each other, as in a model that ranks the rows of a request, and padding may count, as in a mean
    without a mask. Such a model gets no joined executions.
    """

    def __init__(self, scales: OutputScales | None = None) -> None:
        self.state = JoinState.TRIED
        self.mismatches = 0
        self._scales = scales if scales is not None else OutputScales()
        self._agreed = 0
        self._failed = 0
        self._joined = 0

    def pick_requests(self, count: int) -> range:
        """Return which of the joined requests to execute alone too."""
        self._joined += 1
        if self.state is JoinState.TRIED:
            return range(count)
        if self._joined % CHECK_EVERY:
            return range(0)
        position = self._joined // CHECK_EVERY % count
        return range(position, position + 1)

    def compare_answers(self, pairs: Sequence[tuple[Answer, Answer]]) -> bool:
        """Return whether the joined answers may be used, by pairs of an answer alone and joined."""
        if not all(self._scales.is_same_answer(alone, joined) for alone, joined in pairs):
            self.refuse_joins()
            return False
        if self.state is JoinState.TRIED and pairs:
            self._agreed += 1
            self.state = JoinState.PROVED if self._agreed == TRIALS else JoinState.TRIED
        return True

    def record_failure(self) -> None:
        """Count a joined execution that failed while each request alone did not; one may have been too large."""
        self._failed += 1
        if self.state is JoinState.TRIED and self._failed == TRIALS:
            self.refuse_joins()

    def refuse_joins(self) -> None:
        """Join no more requests this way."""
        self.mismatches += 1
        self.state = JoinState.REFUSED

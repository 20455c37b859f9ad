"""Until when an answer is waited for, and what is said where there is none by then."""

from dataclasses import dataclass

from tidegate_dataplane.pipeline.failures import CallError, FailureKind


@dataclass(frozen=True, slots=True)
class Deadline:
    """A time of the caller's clock, and how far off it was when the call began."""

    at_s: float
    allowed_s: float

    def missed(self) -> CallError:
        """Return what is answered in place of what came too late."""
        if self.allowed_s <= 0:
            return CallError(FailureKind.TIMED_OUT, "no time was left to ask")
        return CallError(FailureKind.TIMED_OUT, f"no answer within {round(self.allowed_s * 1000, 1):g} ms")

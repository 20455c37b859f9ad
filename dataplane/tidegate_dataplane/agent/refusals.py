"""Why an artefact cannot be used: an expected outcome, a value in the core and one exception in the shells."""

from dataclasses import dataclass

from tidegate_dataplane.contract import FailureReason


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason from the closed set and a message that names the object, the number and the way out."""

    reason: FailureReason
    message: str

    @property
    def may_pass(self) -> bool:
        """Whether the same attempt may succeed soon without anybody changing anything."""
        return self.reason is FailureReason.FETCH_FAILED


class ArtefactError(Exception):
    """A refusal on its way out of a shell."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(reason, message)


class DeniedError(ArtefactError):
    """The other side answers and does not let us; credentials may still arrive there, so it may pass."""

    def __init__(self, message: str) -> None:
        super().__init__(FailureReason.FETCH_FAILED, message)

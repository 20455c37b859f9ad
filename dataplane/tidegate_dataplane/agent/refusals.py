"""Reasons why a version cannot be used: a value in the core, an exception in the shells."""

from dataclasses import dataclass

from tidegate_dataplane.contract import FailureReason


@dataclass(frozen=True, slots=True)
class VersionRefusal:
    """A reason from the closed set and a message that names the object, the number and the way out."""

    reason: FailureReason
    message: str

    @property
    def is_transient(self) -> bool:
        """Return whether the same attempt may succeed soon without any change."""
        return self.reason is FailureReason.FETCH_FAILED


class ArtefactError(Exception):
    """A refusal as an exception."""

    def __init__(self, reason: FailureReason, message: str) -> None:
        super().__init__(message)
        self.refusal = VersionRefusal(reason, message)


class NoRoomError(ArtefactError):
    """The pod's disk has less room than the artefact needs; it may pass, and until then nothing has to be downloaded."""

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(FailureReason.FETCH_FAILED, message)
        self.needed_bytes = needed_bytes


class WorkEndedError(ArtefactError):
    """A process that worked on the artefact ended without a result; it may do better once, and else would end again."""

    def __init__(self, message: str) -> None:
        super().__init__(FailureReason.ARTEFACT_INVALID, message)


class DeniedError(ArtefactError):
    """The source answers and denies access; it may pass, since credentials may still propagate there."""

    def __init__(self, message: str) -> None:
        super().__init__(FailureReason.FETCH_FAILED, message)

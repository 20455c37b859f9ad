"""The error of a message that cannot be stored."""

from typing import Final

from tidegate_dataplane.contract import RefusalReason

MAX_REASON_CHARS: Final = 300


class EventRefusedError(Exception):
    """The message is no event that can be stored; the text names the field and the value.

    `field` is the field's name, empty if it is the message as such. `is_aged` says that only the time until it was read is at
    fault: an event that was not expired when it reached the broker.
    """

    def __init__(
        self, reason: RefusalReason, message: str, *, field: str = "", is_aged: bool = False
    ) -> None:
        # A message of any size may have any text in it, also half of a surrogate pair.
        self.message = message.encode(errors="backslashreplace").decode()[:MAX_REASON_CHARS]
        super().__init__(self.message)
        self.reason = reason
        self.field = field
        self.is_aged = is_aged

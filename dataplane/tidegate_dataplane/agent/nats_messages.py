"""Messages of NATS streams, of which the client reads no header as a status of the server; imports nats-py."""

from dataclasses import dataclass
from typing import Final

from nats.aio.msg import Msg

STATUS: Final = "Status"
SENDER_STATUS: Final = "Sender-Status"
_ACKNOWLEDGED: Final = "$JS.ACK."
"""Messages of a stream name the subject of their acknowledgement as reply; the server's statuses do not."""


@dataclass
class SenderMsg(Msg):
    """A message whose sender may have set any header.

    nats-py reads `Status` of every message as the server's own status, and raises or drops the message: from a sender, it is called
    `Sender-Status` here.
    """

    def __post_init__(self) -> None:
        """Rename the header in place: the client reads the same mapping."""
        if self.headers and STATUS in self.headers and self.reply.startswith(_ACKNOWLEDGED):
            self.headers[SENDER_STATUS] = self.headers.pop(STATUS)

"""What every broker's client says when it cannot go on."""


class BrokerError(Exception):
    """The broker is not there, or (`refused`) it is and will not; the message is for a status, without any secret."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.message = message
        self.refused = refused

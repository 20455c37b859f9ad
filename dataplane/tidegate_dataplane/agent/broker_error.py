"""Error that every broker client raises."""


class BrokerError(Exception):
    """The broker is unreachable, or reachable and refuses (`refused`).

    The message goes into a status and contains no secret.
    """

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.message = message
        self.refused = refused

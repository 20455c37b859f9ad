"""The errors of the feature engine."""


class FeatureError(ValueError):
    """A plan, a table or a request that the engine cannot use; the message names table, column and number."""


class DiskFullError(FeatureError):
    """A table for whose conversion the disk has no room; the message has the bytes that are needed and those that are free."""

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes

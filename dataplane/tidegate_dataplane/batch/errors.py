"""The errors that end a shard: permanent ones, and those that another pod may not have."""


class TableError(Exception):
    """A permanent error: the table, the model or the spec must change; the message says which and how."""


class MissingColumnError(TableError):
    """A file of the table lacks a column."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


class ServerFaultError(Exception):
    """A retryable error: the server refused too many rows, maybe by a fault of its own, so another pod tries."""

"""The errors that end a shard: permanent ones, and those that another pod may not have."""


class TableError(Exception):
    """A permanent error: the table, the model or the spec must change; the message says which and how."""


class ServerFaultError(Exception):
    """A retryable error: the server refused too many rows, maybe by a fault of its own, so another pod tries."""

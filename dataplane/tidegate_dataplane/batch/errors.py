"""Why a shard cannot be scored by anybody, however often it is tried."""


class TableError(Exception):
    """The table, the model or the spec must change first; the message says which and how."""

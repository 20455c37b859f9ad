"""Why a shard cannot be scored: by anybody, however often it is tried, or by this pod."""


class TableError(Exception):
    """The table, the model or the spec must change first; the message says which and how."""


class ServerFaultError(Exception):
    """The server refused more rows than may be, in a way that may be its own fault: another pod is to try."""

"""What tables, events and rows share in reading columns of Arrow."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # publishes no types


def decode_column(column: Any) -> Any:
    """Return a column, or the chunks of one together, without a dictionary."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def is_string(kind: Any) -> bool:
    """Return whether a type is that of texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_text(kind: Any) -> bool:
    """Return whether a type is that of texts or of bytes."""
    return is_string(kind) or bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

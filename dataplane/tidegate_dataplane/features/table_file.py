"""The header of a converted table, which tells a complete file of the right content from any other.

A converted table is one file: this header, a record of fixed width for each row and one for unknown keys, and the index of its
keys. All numbers are little-endian. The header is written last, so a file that was cut short has none.
"""

import json
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidegate_dataplane.features.errors import FeatureError

TABLE_SUFFIX: Final = ".table"
RECORDS_OFFSET: Final = 4096
"""Where the records begin; the header has the bytes before."""
_MAGIC: Final = b"TGTABLE1"
_PREFIX: Final = struct.Struct("<8sII")
"""The magic bytes, and the length and the CRC-32 of the JSON that follows."""


class TableHeader(BaseModel):
    """What a converted table holds, and where.

    `source` is the sha256 of the Parquet file, `layout` the digest of what a plan reads of it. `first_key` is that of a dense
    index, None if the index is hashed. `homes` is the number of keys or buckets that the index can be asked for.
    """

    model_config = ConfigDict(frozen=True)

    source: str
    layout: str
    rows: int = Field(ge=0)
    record_bytes: int = Field(ge=8)
    key_words: int = Field(ge=0)
    seed: int = Field(ge=0)
    first_key: int | None
    homes: int = Field(ge=0)
    index_offset: int = Field(ge=RECORDS_OFFSET)
    size: int = Field(ge=RECORDS_OFFSET)


def write_header(file: BinaryIO, header: TableHeader) -> None:
    """Write the header at the beginning of a file whose other bytes are on the disk."""
    text = json.dumps(header.model_dump()).encode()
    file.seek(0)
    file.write(_PREFIX.pack(_MAGIC, len(text), zlib.crc32(text)) + text)


def read_header(file: BinaryIO) -> TableHeader:
    """Return the header of an open file.

    Raises:
        FeatureError: the file is no converted table, or was cut short.
    """
    file.seek(0)
    start = file.read(RECORDS_OFFSET)
    if len(start) < _PREFIX.size or not start.startswith(_MAGIC):
        raise FeatureError("it is no converted table")
    _, length, checksum = _PREFIX.unpack_from(start)
    text = start[_PREFIX.size : _PREFIX.size + length]
    if len(text) != length or zlib.crc32(text) != checksum:
        raise FeatureError("its header is damaged")
    try:
        header = TableHeader.model_validate_json(text)
    except ValidationError as error:
        raise FeatureError("its header is of another version") from error
    size = file.seek(0, 2)
    if size != header.size:
        raise FeatureError(f"it has {size:,} bytes of {header.size:,}")
    return header


def is_converted(path: Path, source: str) -> bool:
    """Return whether a file is the complete conversion of the Parquet file with this sha256; reads nothing but its header."""
    try:
        with path.open("rb") as file:
            return read_header(file).source == source
    except (OSError, FeatureError):
        return False

"""Stable 64-bit hashes, the same on every machine, online and offline.

- integers and booleans: splitmix64 (Steele, Lea, Flood 2014; constants of the reference implementation) of the
  value as a 64-bit two's complement number;
- floating point: splitmix64 of the bits of the float64, with -0.0 as 0.0 and every NaN as one NaN;
- strings: BLAKE2b with an 8-byte digest of the UTF-8 bytes, read as a little-endian number;
- a missing value (unknown key, null): a constant of its own;
- several values: h = splitmix64(h + next), started with the first one's hash, so the order counts.

A bucket is the hash modulo the number of buckets. These definitions are part of a trained model: changing one
changes every model that was trained on its output.
"""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
BLOCK_VALUES = 4096
"""Number of digests that are separate objects at a time."""
MISSING = 0x7469646567617465  # "tidegate"


def splitmix64(values: Hashes) -> Hashes:
    """Return the next splitmix64 output for each state; uint64 in, uint64 out, same shape."""
    # Wrapping is the point of the algorithm.
    with np.errstate(over="ignore"):
        mixed = values + _GAMMA
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


def hash_integers(values: npt.NDArray[np.int64]) -> Hashes:
    """Return the hash of each int64."""
    return splitmix64(np.ascontiguousarray(values, dtype=np.int64).view(np.uint64))


def hash_floats(values: npt.NDArray[np.float64]) -> Hashes:
    """Return the hash of each float64."""
    # Adding 0.0 turns -0.0 into 0.0.
    canonical = np.ascontiguousarray(values, dtype=np.float64) + 0.0
    canonical[np.isnan(canonical)] = np.nan
    return splitmix64(canonical.view(np.uint64))


def hash_strings(values: Iterable[bytes]) -> Hashes:
    """Return the hash of each UTF-8 string."""
    remaining = iter(values)
    digests = bytearray()
    while block := list(islice(remaining, BLOCK_VALUES)):
        digests += b"".join([hashlib.blake2b(value, digest_size=8).digest() for value in block])
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def hash_text(value: bytes) -> int:
    """Return the hash of one UTF-8 string."""
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def hash_numbers(values: npt.NDArray[np.generic]) -> Hashes:
    """Return the hash of each number; uint64 values are hashes of strings already."""
    if values.dtype == np.uint64:
        return values.astype(np.uint64, copy=False)
    if np.issubdtype(values.dtype, np.integer):
        return hash_integers(values.astype(np.int64, copy=False))
    return hash_floats(values.astype(np.float64, copy=False))


def combine_hashes(parts: Sequence[Hashes]) -> Hashes:
    """Return the hash of the values together, in order."""
    combined = parts[0]
    with np.errstate(over="ignore"):
        for part in parts[1:]:
            combined = splitmix64(combined + part)
    return combined


def to_padded_bucket(hashes: Hashes, buckets: int) -> npt.NDArray[np.int64]:
    """Return 1 plus each hash modulo `buckets` - 1, as int64: 0 is padding."""
    return 1 + to_bucket(hashes, buckets - 1)


def to_bucket(hashes: Hashes, buckets: int) -> npt.NDArray[np.int64]:
    """Return each hash modulo `buckets`, as int64."""
    return (hashes % np.uint64(buckets)).astype(np.int64)

"""Find keys in a converted table.

The index maps tokens, unique 64-bit numbers, to rows. An integer key is its own token. If such keys are dense, the index has a row
for each possible key. Otherwise it is a hash table in buckets of eight tokens and their rows, so that a search reads one place of
the file, and more only where a bucket is full. The token of a string is a hash of its words, and the record has the words
themselves to compare with.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.intp]
Tokens = npt.NDArray[np.uint64]

MAX_KEY_WORDS: Final = 5
_SHORT_BYTES: Final = 8 * MAX_KEY_WORDS - 1
"""Longer keys are compared by a digest of 256 bits."""
SLOTS: Final = 8
BUCKET_WORDS: Final = 12
"""Eight tokens of one word, and eight rows of half a word."""
EMPTY: Final = np.uint32(0xFFFFFFFF)
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_HALF: Final = np.uint64(32)


def make_words(keys: Sequence[bytes], width: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
    """Return (words [n, width], fits [n]) of string keys; equal words are equal keys where they fit.

    A key is followed by a byte 1 and zeros; a key of more than 39 bytes is its BLAKE2b digest, followed by a byte 2 and zeros.
    """
    fits = np.ones(len(keys), dtype=bool)
    longest = max(map(len, keys), default=0)
    texts = [key + b"\x01" if len(key) <= _SHORT_BYTES else _shorten_key(key) for key in keys]
    if min(longest, _SHORT_BYTES) >= 8 * width:
        fits = np.array([len(text) <= 8 * width for text in texts], dtype=bool)
    key_words = np.array(texts, dtype=f"S{8 * width}").view("<u8").reshape(len(keys), width)
    return key_words, fits


def count_key_words(longest: int) -> int:
    """Return the words of 8 bytes for keys of at most this many bytes."""
    return min(longest // 8 + 1, MAX_KEY_WORDS)


def read_text(key_words: npt.NDArray[np.uint64]) -> str:
    """Return a key from its words, for a message."""
    text = key_words.astype("<u8").tobytes().rstrip(b"\x00")
    if text.endswith(b"\x02"):
        return f"one of more than {_SHORT_BYTES} bytes"
    return text[:-1].decode(errors="replace")


def hash_words(key_words: npt.NDArray[np.uint64], seed: int) -> Tokens:
    """Return the token of each key, [n], from its words, [n, width]."""
    hashes = key_words[:, 0] * _GAMMA
    hashes += np.uint64(seed)
    for column in range(1, key_words.shape[1]):
        hashes ^= hashes >> _HALF
        hashes *= _GAMMA
        hashes += key_words[:, column]
    hashes ^= hashes >> _HALF
    hashes *= _GAMMA
    hashes ^= hashes >> _HALF
    return hashes


def _shorten_key(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=32).digest() + b"\x02"


def mix_tokens(tokens: Tokens) -> Tokens:
    """Return other numbers, evenly spread and as unique as the tokens."""
    return (tokens ^ (tokens >> _HALF)) * _GAMMA


def choose_homes(mixed: Tokens, homes: int) -> Rows:
    """Return the bucket where the search for each token begins; it grows with the mixed token."""
    return (((mixed >> _HALF) * np.uint64(homes)) >> _HALF).astype(np.intp)


class DenseIndex:
    """An entry per possible key."""

    def __init__(self, entries: npt.NDArray[np.uint32], first: int, rows: int) -> None:
        self._entries = entries
        self._first = np.int64(first).view(np.uint64)
        self._rows = rows

    def find_rows(self, tokens: Tokens) -> Rows:
        """Return the row of each token, [n]; the number of rows if there is none."""
        # Modulo 2**64, so that keys before the first one are large.
        positions = tokens - self._first
        inside = positions < self._entries.size
        if inside.all():
            return self._entries.take(positions.view(np.intp)).astype(np.intp)
        rows = self._entries.take(np.where(inside, positions, 0).astype(np.intp))
        return np.where(inside, rows, self._rows).astype(np.intp)


class HashedIndex:
    """Buckets of eight tokens with their rows; a token that its own bucket has no room for is in one of the next."""

    def __init__(self, key_words: Tokens, homes: int, rows: int) -> None:
        self._buckets = key_words.reshape(-1, BUCKET_WORDS)
        self._homes = homes
        self._rows = rows

    def find_rows(self, tokens: Tokens) -> Rows:
        """Return the row of each token, [n]; the number of rows if there is none."""
        buckets = choose_homes(mix_tokens(tokens), self._homes)
        rows, is_open = self._search_buckets(buckets, tokens)
        while is_open.any():
            positions = np.flatnonzero(is_open)
            buckets[positions] += 1
            rows[positions], is_open[positions] = self._search_buckets(buckets[positions], tokens[positions])
        return rows

    def _search_buckets(self, buckets: Rows, tokens: Tokens) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Return the row of each token, and whether the next bucket may have it."""
        content = self._buckets.take(buckets, axis=0)
        matches = content[:, :SLOTS] == tokens[:, None]
        slots, order = matches.argmax(axis=1), np.arange(len(tokens))
        stored = content.view(np.uint32)[:, 2 * SLOTS :]
        rows = stored[order, slots]
        # An empty slot may have any token, and comes after those that are taken.
        is_present = matches[order, slots] & (rows != EMPTY)
        if is_present.all():
            return rows.astype(np.intp), np.zeros(len(tokens), dtype=bool)
        is_open = ~is_present & (stored[:, -1] != EMPTY)
        return np.where(is_present, rows, self._rows).astype(np.intp), is_open

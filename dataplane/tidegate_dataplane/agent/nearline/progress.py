"""How far a partition has been worked off, message by message, where the broker keeps one offset for all of it. Pure.

What is committed is the first offset that is not settled, and beside it, in the text that Kafka keeps with an offset, which
of the later ones are not settled either and how often each was delivered. So whoever has the partition next repeats only
what was not settled, and counts on.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

MARK: Final = "tidegate1"
"""Begins a text of ours, with the offset that it belongs to; an offset with another text is taken as it is, such as one that
a person has set, or that was carried over into another cluster."""
MOST_BYTES: Final = 4_000
"""Kafka takes 4096 bytes with an offset, unless offset.metadata.max.bytes says otherwise."""
LONGEST_HEAD: Final = 32
"""Characters for two numbers of 64 bits, and what stands between."""
DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True)
class Progress:
    """One partition: all below `seen` was handed out, and of that all but `unsettled` is done."""

    seen: int
    unsettled: dict[int, int] = field(default_factory=dict[int, int])
    """Offset → how often it was delivered."""
    _here: set[int] = field(default_factory=set[int])
    """Those of them that were delivered to this pod."""

    @property
    def committable(self) -> int:
        """The first offset that is not settled, or the next one."""
        return min(self.unsettled, default=self.seen)

    def deliver(self, offset: int) -> int | None:
        """Return how often the message was delivered, this time included; None if it is done, or here already."""
        if offset >= self.seen:
            self.seen = offset + 1
            self.unsettled[offset] = 1
        elif offset not in self.unsettled or offset in self._here:
            return None
        else:
            self.unsettled[offset] += 1
        self._here.add(offset)
        return self.unsettled[offset]

    def deliver_again(self, offset: int) -> int:
        """Count one more delivery of a message that is here and was given back."""
        self.unsettled[offset] += 1
        return self.unsettled[offset]

    def settle(self, offset: int) -> None:
        """The message is dealt with."""
        self.unsettled.pop(offset, None)
        self._here.discard(offset)

    def passed(self, position: int) -> None:
        """All below `position` was read: what was to come again and has not come is gone from the topic."""
        self.seen = max(self.seen, position)
        for offset in [offset for offset in self.unsettled if offset < position and offset not in self._here]:
            del self.unsettled[offset]


def written(progress: Progress) -> tuple[int, str]:
    """Return the offset to commit, and the text to commit with it.

    What finds no room in the text counts as not delivered: it comes again, and its id has a result.
    """
    first = progress.committable
    text, previous, next_offset = "", first, progress.seen
    for offset, delivered in sorted(progress.unsettled.items()):
        entry = f" {_digits(offset - previous)}.{_digits(delivered)}"
        if len(MARK) + len(text) + len(entry) + LONGEST_HEAD > MOST_BYTES:
            next_offset = offset
            break
        text, previous = text + entry, offset
    return first, f"{MARK} {_digits(first)} {_digits(next_offset - first)}{text}"


def read(offset: int, text: str) -> Progress:
    """Return what was committed; nothing but the offset where the text is not ours, or another offset's."""
    try:
        mark, first, handed_out, *entries = text.split(" ")
        if mark != MARK or int(first, 36) != offset:
            return Progress(offset)
        return Progress(offset + int(handed_out, 36), dict(_entries(offset, entries)))
    except ValueError:
        return Progress(offset)


def _entries(offset: int, entries: list[str]) -> Iterator[tuple[int, int]]:
    for entry in entries:
        step, _, delivered = entry.partition(".")
        offset += int(step, 36)
        yield offset, int(delivered, 36)


def _digits(number: int) -> str:
    digits = DIGITS[number % 36]
    while number := number // 36:
        digits = DIGITS[number % 36] + digits
    return digits

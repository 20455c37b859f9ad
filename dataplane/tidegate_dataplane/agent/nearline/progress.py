"""Progress in a partition, message by message, for a broker that keeps one offset. Pure.

A commit has the first unsettled offset, and in the metadata that Kafka keeps with it the later offsets that are not
settled either, with the number of their deliveries. So the next owner of the partition repeats only what was not
settled, and continues the counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

MARK: Final = "tidegate1"
"""Begins a text of ours, with the offset that it belongs to; an offset with another text is taken as it is, such as one that
a person has set, or that was carried over into another cluster."""
MAX_METADATA_BYTES: Final = 4_000
"""Kafka takes 4096 bytes with an offset, unless offset.metadata.max.bytes says otherwise."""
MAX_HEAD_CHARS: Final = 32
"""Characters for two numbers of 64 bits, and what stands between."""
DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True)
class PartitionProgress:
    """Progress of one partition: all offsets below the next one were delivered, and all but `unsettled` are settled."""

    next_offset: int
    unsettled: dict[int, int] = field(default_factory=dict[int, int])
    """Offset → how often it was delivered."""
    _here: set[int] = field(default_factory=set[int])
    """The deliveries to this pod."""

    @property
    def committable_offset(self) -> int:
        """Return the first unsettled offset, or the next one if all are settled."""
        return min(self.unsettled, default=self.next_offset)

    def deliver_offset(self, offset: int) -> int | None:
        """Return how often the message was delivered, now included; None if it is settled or already here."""
        if offset >= self.next_offset:
            self.next_offset = offset + 1
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

    def settle_offset(self, offset: int) -> None:
        """Mark the message as settled."""
        self.unsettled.pop(offset, None)
        self._here.discard(offset)

    def advance_to(self, position: int) -> None:
        """Record that all below `position` was read: unsettled messages that did not come again have left the topic."""
        self.next_offset = max(self.next_offset, position)
        for offset in [offset for offset in self.unsettled if offset < position and offset not in self._here]:
            del self.unsettled[offset]


def encode_progress(progress: PartitionProgress) -> tuple[int, str]:
    """Return the offset to commit, and the text to commit with it.

    Messages that do not fit into the text count as not delivered: they come again, and their ids have a result.
    """
    first = progress.committable_offset
    text, previous, next_offset = "", first, progress.next_offset
    for offset, delivered in sorted(progress.unsettled.items()):
        entry = f" {_to_base36(offset - previous)}.{_to_base36(delivered)}"
        if len(MARK) + len(text) + len(entry) + MAX_HEAD_CHARS > MAX_METADATA_BYTES:
            next_offset = offset
            break
        text, previous = text + entry, offset
    return first, f"{MARK} {_to_base36(first)} {_to_base36(next_offset - first)}{text}"


def decode_progress(offset: int, text: str) -> PartitionProgress:
    """Return the committed progress; only the offset if the text is not ours or belongs to another offset."""
    try:
        mark, first, handed_out, *entries = text.split(" ")
        if mark != MARK or int(first, 36) != offset:
            return PartitionProgress(offset)
        return PartitionProgress(offset + int(handed_out, 36), dict(_decode_entries(offset, entries)))
    except ValueError:
        return PartitionProgress(offset)


def _decode_entries(offset: int, entries: list[str]) -> Iterator[tuple[int, int]]:
    for entry in entries:
        step, _, delivered = entry.partition(".")
        offset += int(step, 36)
        yield offset, int(delivered, 36)


def _to_base36(number: int) -> str:
    digits = DIGITS[number % 36]
    while number := number // 36:
        digits = DIGITS[number % 36] + digits
    return digits

"""Rate a film as a user does, and measure how soon the features of the user's next request have it."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.rating_stream import RatingStream
from tidegate_localcluster.demo.scoring import Tensors

HISTORY: Final = "hist_items"
STARS: Final = 5
TIMEOUT_S: Final = 30.0
FIRST_PAUSE_S: Final = 0.001
PAUSE_GROWTH: Final = 1.1
LONGEST_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class LiveRating:
    """A rating, and the features of the same user and film, one row each, before and after it."""

    rated_item: int
    seconds: float
    """From the publication of the rating until the first answer that had it."""
    before: Tensors
    after: Tensors


@dataclass(frozen=True, slots=True)
class Delays:
    """From the publication of each of several ratings until the first answer that had it."""

    seconds: Sequence[float]

    def find_quantile(self, share: float) -> float:
        """Return the seconds that this share of the ratings took at most, the nearest rank."""
        ordered = sorted(self.seconds)
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]

    def format_text(self) -> str:
        """Return the median and the p99 in milliseconds."""
        median, p99 = (f"{self.find_quantile(share) * 1000:.0f} ms" for share in (0.5, 0.99))
        return f"median {median}, p99 {p99}, of {len(self.seconds)} ratings"


def rate_film(
    stream: RatingStream,
    user_id: int,
    ask_features: Callable[[], Tensors],
    pause: Callable[[float], None] = time.sleep,
) -> LiveRating:
    """Let the user like a film that is not in their history, and ask until the features have it.

    `pause` gets the seconds between two requests: FIRST_PAUSE_S, then PAUSE_GROWTH times as long after each request,
    LONGEST_PAUSE_S at most. Raises DemoError if the features do not have the film after TIMEOUT_S.
    """
    before = ask_features()
    history = before[HISTORY][0]
    # MovieLens numbers its films from 1.
    rated_item = next(item for item in range(1, len(history) + 2) if item not in history)
    published_s = stream.publish_rating(user_id, rated_item, STARS)
    pause_s = FIRST_PAUSE_S
    while True:
        after = ask_features()
        seconds = time.monotonic() - published_s
        newest = int(after[HISTORY][0, 0])
        if newest == rated_item:
            return LiveRating(rated_item, seconds, before, after)
        if seconds > TIMEOUT_S:
            raise DemoError(
                f"user {user_id} rated film {rated_item} {TIMEOUT_S:g} s ago, and {HISTORY} still begins with "
                f"film {newest}: kubectl describe featurecompute shows in Fresh why"
            )
        pause(pause_s)
        pause_s = min(pause_s * PAUSE_GROWTH, LONGEST_PAUSE_S)

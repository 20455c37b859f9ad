"""The demo's rating: which film is rated, what counts as seen, and what is an error."""

from typing import cast

import numpy as np
import pytest

from tidegate_localcluster.demo import live_rating
from tidegate_localcluster.demo.errors import DemoError
from tidegate_localcluster.demo.live_rating import HISTORY, Delays, rate_film
from tidegate_localcluster.demo.rating_stream import RatingStream
from tidegate_localcluster.demo.scoring import Tensors

USER = 17


class FakeStream:
    """Puts a rating into the history when the features were asked for `delay` times."""

    def __init__(self, history: list[int], delay: int = 1) -> None:
        self.ratings: list[tuple[int, int, int]] = []
        self._history = history
        self._delay = delay

    def publish_rating(self, user_id: int, item_row: int, stars: int) -> float:
        self.ratings.append((user_id, item_row, stars))
        return live_rating.time.monotonic()

    def ask_features(self) -> Tensors:
        if self.ratings and self._delay == 0:
            self._history = [self.ratings[-1][1], *self._history[:-1]]
        self._delay -= bool(self.ratings)
        return {HISTORY: np.array([self._history])}


def rate(stream: FakeStream, pauses: list[float]) -> live_rating.LiveRating:
    return rate_film(cast(RatingStream, stream), USER, stream.ask_features, pauses.append)


def test_a_film_that_is_not_in_the_history_is_rated_and_awaited() -> None:
    stream, pauses = FakeStream([3, 1, 0], delay=2), list[float]()
    rating = rate(stream, pauses)
    assert pauses == pytest.approx([0.001, 0.0011])
    assert stream.ratings == [(USER, 2, 5)]
    assert rating.rated_item == 2
    assert rating.before[HISTORY].tolist() == [[3, 1, 0]]
    assert rating.after[HISTORY].tolist() == [[2, 3, 1]]
    assert rating.seconds > 0


def test_an_answer_that_has_the_rating_at_once_is_not_awaited() -> None:
    pauses: list[float] = []
    assert rate(FakeStream([3, 1, 0], delay=0), pauses).rated_item == 2
    assert pauses == []


def test_the_pauses_between_requests_grow_to_half_a_second() -> None:
    pauses: list[float] = []
    rate(FakeStream([3, 1, 0], delay=70), pauses)
    assert pauses == sorted(pauses)
    assert (len(pauses), pauses[-1]) == (70, 0.5)


def test_delays_are_described_by_the_ratings_that_took_so_long() -> None:
    delays = Delays([number / 1000 for number in range(100, 0, -1)])
    assert (delays.find_quantile(0.5), delays.find_quantile(0.99)) == (0.05, 0.099)
    assert delays.format_text() == "median 50 ms, p99 99 ms, of 100 ratings"
    assert Delays([0.25]).format_text() == "median 250 ms, p99 250 ms, of 1 ratings"


def test_a_rating_that_does_not_arrive_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_rating, "TIMEOUT_S", 0.0)
    with pytest.raises(
        DemoError, match="user 17 rated film 1 0 s ago, and hist_items still begins with film 2"
    ):
        rate(FakeStream([2, 0, 0], delay=10**6), [])

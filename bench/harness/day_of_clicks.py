"""A day of clicks of a shop, drawn at random: busy evenings, visits of several pages, few users and items that many events have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DAY_MS: Final = 86_400_000
PAGES: Final = 20
MEAN_VISIT: Final = 8
"""Events of a visit, whose number is geometric."""
MEAN_PAUSE_MS: Final = 20_000
"""Between two events of a visit, exponential."""
PEAK_HOUR: Final = 20.5
PEAK: Final = 0.85
"""At the peak, 1 + PEAK times the mean rate of events; twelve hours later 1 - PEAK times."""
CLICKED: Final = 0.08


def draw_day(
    count: int, *, users: int, items: int = 50_000, until_ms: int, seed: int = 1
) -> Mapping[str, NDArray[Any]]:
    """Return the columns of `count` events in the order of their times, [count] each; the last hour of the day ends at `until_ms`.

    The hours are those of a clock that shows midnight at `until_ms`. Activity of users is log-normal; popularity of items
    falls with the cube root of their rank.
    """
    random = np.random.default_rng(seed)
    visits = max(count // MEAN_VISIT * 2, 1)
    lengths = random.geometric(1 / MEAN_VISIT, visits)
    visits = int(np.searchsorted(np.cumsum(lengths), count)) + 1
    lengths = lengths[:visits]
    visit = np.repeat(np.arange(visits), lengths)[:count]
    minutes = np.arange(24 * 60)
    density = 1 + PEAK * np.cos(2 * np.pi * (minutes / 60 - PEAK_HOUR) / 24)
    begins = random.choice(minutes, visits, p=density / density.sum()) * 60_000 + random.integers(
        0, 60_000, visits
    )
    pauses = random.exponential(MEAN_PAUSE_MS, count)
    first = np.append(True, visit[1:] != visit[:-1])
    elapsed = np.cumsum(pauses)
    elapsed -= np.repeat(elapsed[first], np.diff(np.append(np.flatnonzero(first), count)))
    times = np.minimum(begins[visit] + elapsed.astype(np.int64), DAY_MS - 1)
    activity = random.lognormal(0, 1.5, users)
    visitors = random.choice(users, visits, p=activity / activity.sum())
    order = np.argsort(times, kind="stable")
    item_ids = (items * random.random(count) ** 3).astype(np.int64)
    return {
        "user_id": visitors[visit][order],
        "ts": until_ms - DAY_MS + times[order],
        "item_id": item_ids,
        "click": (random.random(count) < CLICKED).astype(np.int64),
        "price": np.round(random.lognormal(3, 1, count), 2),
        "page": random.integers(0, PAGES, count),
    }


def list_messages(day: Mapping[str, NDArray[Any]], first: int, end: int) -> Iterator[Mapping[str, Any]]:
    """Yield what producers send, of the events from `first` on and before `end`."""
    for position in range(first, min(end, len(day["ts"]))):
        message = {name: column[position].item() for name, column in day.items()}
        yield {**message, "page": f"page-{message['page']}"}

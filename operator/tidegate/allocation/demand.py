"""What is asked of an Inference in each step, from the signals of its tier; the present rate, until somebody forecasts.

Demand is what is offered, not what is served: the gateways' accepted and refused requests together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.allocation.errors import LARGEST, InvalidInputError, check_amount
from tidegate.allocation.snapshot import Load, Step

MOST_URGENT: Final = 10.0
"""What a request of work that cannot wait counts, against one that can."""


def realtime(offered: float, steps: Sequence[Step]) -> Load:
    """`offered`: requests per second that clients send, refused ones included."""
    return Load((offered,) * len(steps))


def nearline(arrivals: float, backlog: float, deadline_s: float, steps: Sequence[Step]) -> Load:
    """`arrivals` per second on top of a `backlog` of requests, each of which may wait `deadline_s`.

    The backlog is spread over the horizon. Urgency rises as clearing it in time takes more than what arrives anyway; past the
    deadline (0 or less) it is MOST_URGENT. Raises InvalidInputError for what is no number, and without steps.
    """
    check_amount("nearline: arrivals", arrivals)
    check_amount("nearline: backlog", backlog)
    check_amount("nearline: deadline_s", deadline_s, least=-LARGEST)
    if backlog <= 0:
        return _spread(arrivals, backlog, 1.0, steps)
    late = deadline_s <= 0 or arrivals <= 0
    urgency = MOST_URGENT if late else min(1.0 + backlog / deadline_s / arrivals, MOST_URGENT)
    return _spread(arrivals, backlog, urgency, steps)


def offline(left_slice_s: float, deadline_s: float | None, held_slices: int, steps: Sequence[Step]) -> Load:
    """`left_slice_s` slice-seconds of work until `deadline_s` from now (None: whenever; past: 0 or less), with `held_slices` at work.

    Give the Inference the curve `linear(slices per replica)`: a slice-second is its request. Raises InvalidInputError for what is no number, and without steps.
    """
    check_amount("offline: left_slice_s", left_slice_s)
    if deadline_s is None:
        return _spread(0.0, left_slice_s, 1.0, steps)
    check_amount("offline: deadline_s", deadline_s, least=-LARGEST)
    if left_slice_s <= 0:
        return _spread(0.0, left_slice_s, 1.0, steps)
    urgency = MOST_URGENT if deadline_s <= 0 else left_slice_s / deadline_s / max(held_slices, 1)
    return _spread(0.0, left_slice_s, min(max(urgency, 1.0), MOST_URGENT), steps)


def _spread(rate: float, amount: float, urgency: float, steps: Sequence[Step]) -> Load:
    if not steps:
        raise InvalidInputError("steps", "is empty; give the present one at least")
    horizon_s = sum(step.seconds for step in steps)
    return Load((rate + amount / horizon_s,) * len(steps), (urgency,) * len(steps))

"""How long an execution takes, by the number of elements of its inputs: learned from those that ran."""

from bisect import bisect_left

_WEIGHT = 0.1
"""Share of a new measurement in the mean."""
_MAX_RATIO = 2.0
"""A measurement counts as at most this multiple of the mean: a process that gets no CPU says nothing about the model."""


class ExecutionCost:
    """Means for powers of two of elements, with straight lines between them."""

    def __init__(self) -> None:
        self._means: dict[int, tuple[float, float]] = {}

    def record_execution(self, elements: int, seconds: float) -> None:
        """Take one execution into account."""
        power = elements.bit_length()
        mean = self._means.get(power)
        if mean is None:
            self._means[power] = (elements, seconds)
            return
        seconds = min(seconds, mean[1] * _MAX_RATIO)
        self._means[power] = (
            mean[0] + _WEIGHT * (elements - mean[0]),
            mean[1] + _WEIGHT * (seconds - mean[1]),
        )

    def estimate_seconds(self, elements: int) -> float | None:
        """Return the expected seconds of an execution; None before two sizes were measured."""
        points = sorted(self._means.values())
        if len(points) < 2:
            return None
        if elements <= points[0][0]:
            return points[0][1]
        end = min(max(bisect_left(points, (elements, 0.0)), 1), len(points) - 1)
        (low, low_s), (high, high_s) = points[end - 1], points[end]
        slope = max(high_s - low_s, 0.0) / max(high - low, 1.0)
        return low_s + slope * (elements - low)

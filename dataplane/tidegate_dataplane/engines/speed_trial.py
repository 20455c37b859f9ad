"""Whether an engine is faster than the original graph on the requests of one shape, where it is used."""

from statistics import median

TIMED = 32
"""Requests of each that a trial times; they take turns, so that both meet the same machine."""
MIN_GAIN = 1.03
"""An engine that gains less is not used: measurements vary, and it takes memory."""
TRIAL_EVERY = 4096
"""After this many requests there is another trial: the machine may have other work."""
MAX_TRIAL_EVERY = 16 * TRIAL_EVERY
"""After trials that the original graph won one after the other, each comes after twice as many requests, up to this."""


class SpeedTrial:
    """Times requests in turn in the engine and in the original graph, then uses the faster."""

    def __init__(self) -> None:
        self.ratio: float | None = None
        """Time of the original over that of the engine; None before the first trial has ended."""
        self._engine_s: list[float] = []
        self._original_s: list[float] = []
        self._requests = 0
        self._trial_every = TRIAL_EVERY

    @property
    def is_slower(self) -> bool:
        """Return whether the engine gained too little in the last trial."""
        return self.ratio is not None and self.ratio < MIN_GAIN

    def picks_engine(self) -> bool:
        """Return whether the next request should run in the engine."""
        self._requests += 1
        if self.ratio is None or self._requests > self._trial_every:
            return len(self._engine_s) <= len(self._original_s)
        return not self.is_slower

    def record_engine(self, seconds: float) -> None:
        """Take a request into account that the engine alone answered."""
        self._engine_s.append(seconds)
        self._judge_times()

    def record_original(self, seconds: float) -> None:
        """Take a request into account that the original graph alone answered."""
        self._original_s.append(seconds)
        self._judge_times()

    def _judge_times(self) -> None:
        if self.ratio is not None and self._requests <= self._trial_every:
            self._engine_s, self._original_s = [], []
        elif min(len(self._engine_s), len(self._original_s)) >= TIMED:
            was_slower = self.is_slower
            self.ratio = median(self._original_s) / max(median(self._engine_s), 1e-9)
            is_again = was_slower and self.is_slower
            self._trial_every = min(2 * self._trial_every, MAX_TRIAL_EVERY) if is_again else TRIAL_EVERY
            self._engine_s, self._original_s, self._requests = [], [], 0

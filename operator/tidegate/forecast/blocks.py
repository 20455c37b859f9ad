"""The blocks of time of a history of rates; free of NumPy, which only forecasts need."""

from typing import Final

BLOCK_S: Final = 300.0
DAY_S: Final = 86_400.0
HISTORY_S: Final = 28 * DAY_S
"""Four weeks: the median of four earlier weeks is the longest season that a forecast uses."""

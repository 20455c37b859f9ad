"""Counters of a model of the Python backend among the metrics of its server."""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

EXPORT_DELAY_S: Final = 0.25


class ServerCounters:
    """The counters of a model among the server's metrics, which are the sums over all instances.

    Each number is a message to the server, so a thread of their own sends them, `EXPORT_DELAY_S` after a batch.
    """

    def __init__(
        self,
        family_class: Any,
        model: str,
        families: Mapping[str, str],
        read_totals: Callable[[], Iterable[tuple[str, Mapping[str, str], int]]],
    ) -> None:
        """`family_class` is MetricFamily of the Python backend, which only servers have; `families` has texts by name.

        `read_totals` returns the family, the labels and the total of each counter; another thread calls it.
        """
        self._model = model
        self._read_totals = read_totals
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, ...], Any] = {}
        self._last_totals: dict[tuple[str, ...], int] = {}
        try:
            for name, description in families.items():
                self._families[name] = family_class(
                    name=name, description=description, kind=family_class.COUNTER
                )
        except Exception:  # noqa: BLE001 - a server without metrics still serves
            self._families = {}
        self._changed, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._export_changes, name="counters", daemon=True)
        if self._families:
            self._thread.start()

    def export_soon(self) -> None:
        """Let the totals be exported."""
        self._changed.set()

    def stop_exporting(self) -> None:
        """Export the last totals, and end the thread."""
        self._stopping.set()
        self._changed.set()
        if self._families:
            self._thread.join()
            self._add_increases()

    def _export_changes(self) -> None:
        while not self._stopping.is_set():
            self._changed.wait()
            if self._stopping.wait(EXPORT_DELAY_S):
                return
            self._changed.clear()
            self._add_increases()

    def _add_increases(self) -> None:
        for family, labels, total in self._read_totals():
            key = (family, *labels.values())
            with suppress(Exception):  # the server may end meanwhile
                if key not in self._metrics:
                    labels = {"model": self._model, **labels}
                    self._metrics[key] = self._families[family].Metric(labels=labels)
                increase = total - self._last_totals.get(key, 0)
                if increase:
                    self._metrics[key].increment(increase)
                    self._last_totals[key] = total

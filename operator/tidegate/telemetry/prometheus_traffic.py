"""Signals from a Prometheus that scrapes the gateways and the model servers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import timedelta
from math import isfinite
from statistics import fmean
from typing import Final

from tidegate.api.meta import ObjectKey
from tidegate.planning.signals import Look, Reading
from tidegate.planning.traffic import Shares
from tidegate.telemetry import expressions
from tidegate.telemetry.gateways import Gateway
from tidegate.telemetry.prometheus_api import PrometheusApi, PrometheusError, Sample

_LOOK_S: Final = 20
# Just under the minute that rates reach back: ticks are not exact.
_WINDOW: Final = timedelta(seconds=59)
_SEEN_WITHIN_S: Final = 60.0
_WHOLE_AFTER: Final = timedelta(seconds=75)
"""The minute that rates reach back, and a scrape."""

_ASKED: Final = (
    expressions.SEEN_AGO,
    expressions.RUNNING_FOR,
    expressions.OFFERED,
    expressions.SERVED,
    expressions.LATENCY_P99,
    expressions.UNSERVED,
    expressions.QUEUE,
    expressions.BUSY,
)

Samples = Sequence[Sample]
Owners = Mapping[ObjectKey, ObjectKey]
"""The Inference of each pod of a model."""


class PrometheusTraffic:
    """Asks for rates of the last minute; a SignalSource.

    It needs the gateways' pages under their pods' names (label `pod`) or addresses (label `instance`), and Triton's under
    `namespace` and `pod`: as Prometheus Operator and the usual discovery by annotations have them.
    """

    def __init__(
        self,
        url: str,
        gateways: Callable[[], Sequence[Gateway]],
        shares: Callable[[], Shares],
        owners: Callable[[], Owners],
        whole_after: timedelta = _WHOLE_AFTER,
    ) -> None:
        """`shares` tells whose requests a route turns away when no target has a pod.

        A gateway that runs for less than `whole_after` is silent: its rates lack what it, or the one before it, took earlier.
        """
        self._api = PrometheusApi(url)
        self._source = f"Prometheus {url}"
        self._gateways = gateways
        self._shares = shares
        self._owners = owners
        self._whole_after_s = whole_after.total_seconds()

    async def look(self) -> Look:
        """The rates of the last minute."""
        gateways = self._gateways()
        try:
            async with asyncio.timeout(_LOOK_S):
                found = {expression: await self._api.query(expression) for expression in _ASKED}
            # Some hundred thousand samples are more than the event loop has time for.
            return await asyncio.to_thread(self._made, found, gateways, self._shares(), self._owners())
        except PrometheusError as error:
            return self._failed(str(error))
        except (ValueError, KeyError) as error:
            return self._failed(f"its answer cannot be read ({type(error).__name__})")
        except TimeoutError:
            return self._failed(f"no answer within {_LOOK_S} s")

    def _failed(self, why: str) -> Look:
        return Look(self._source, {}, _WINDOW, failure=why)

    def _made(
        self, found: Mapping[str, Samples], gateways: Sequence[Gateway], shares: Shares, owners: Owners
    ) -> Look:
        seen = _gateways(found[expressions.SEEN_AGO], lambda ago_s: ago_s <= _SEEN_WITHIN_S)
        whole = _gateways(found[expressions.RUNNING_FOR], lambda age_s: age_s >= self._whole_after_s)
        silent = _without(gateways, seen & whole)
        if gateways and len(_without(gateways, seen)) == len(gateways):
            which = ", ".join(sorted(gateway.address for gateway in gateways)[:3])
            return self._failed(
                f"it has scraped no gateway in the last minute, whose label instance is one of {which} "
                "or pod the gateway's"
            )
        offered = _by_inference(found[expressions.OFFERED])
        for sample in found[expressions.UNSERVED]:
            route = str(sample["metric"].get("route", "")).rpartition("/")[0]
            for key, share in shares.get(route, {}).items():
                offered[key] = offered.get(key, 0.0) + share * _value(sample)
        served = _by_inference(found[expressions.SERVED])
        latency = _by_inference(found[expressions.LATENCY_P99])
        queue, busy = (
            _by_owner(found[expression], owners) for expression in (expressions.QUEUE, expressions.BUSY)
        )
        readings = {
            key: Reading(rate, served.get(key), latency.get(key), queue.get(key), busy.get(key))
            for key, rate in offered.items()
        }
        failure = "" if gateways else "no gateway takes traffic"
        return Look(self._source, readings, _WINDOW, silent=silent, failure=failure)


def _gateways(samples: Samples, true: Callable[[float], bool]) -> set[str]:
    """Names and addresses of the gateways of which it is true."""
    return {
        str(name)
        for sample in samples
        if true(_value(sample))
        for name in (sample["metric"].get("pod"), sample["metric"].get("instance"))
        if name
    }


def _without(gateways: Sequence[Gateway], known: Set[str]) -> tuple[str, ...]:
    """The gateways of which neither the name nor the address is known."""
    return tuple(sorted(one.name for one in gateways if not {one.name, one.address} & known))


def _by_inference(samples: Samples) -> dict[ObjectKey, float]:
    """NaN stays what it is: that a figure makes no sense is something else than that there is none."""
    return {
        ObjectKey(sample["metric"]["namespace"], sample["metric"]["inference"]): _value(sample)
        for sample in samples
        if sample["metric"].get("inference")
    }


def _by_owner(samples: Samples, owners: Owners) -> Mapping[ObjectKey, float]:
    """The mean over the pods of each Inference."""
    values: defaultdict[ObjectKey, list[float]] = defaultdict(list)
    for sample in samples:
        metric = sample["metric"]
        owner = owners.get(ObjectKey(metric.get("namespace", ""), metric.get("pod", "")))
        if owner is not None and isfinite(_value(sample)):
            values[owner].append(_value(sample))
    return {owner: fmean(found) for owner, found in values.items()}


def _value(sample: Sample) -> float:
    return float(sample["value"][1])

"""Judge by what was planned before which Inferences need no reserve beside shared spares, and which models these keep loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from tidegate.api.durations import parse_duration
from tidegate.planning.allocator.observed_pool import AllocationObserved
from tidegate.planning.allocator.spare_plan import LoadedModel, PlannedSpare

_LEAST_LOAD_TIME: Final = timedelta(minutes=1)
"""The time to load a version where replicas show a shorter one or none: a spare loads the versions of its models in turn."""


class SpareCover(NamedTuple):
    """The covered Inferences, and those of them whose spares do not serve now, with the time at which they stopped."""

    covered: frozenset[str]
    reloading: Mapping[str, datetime]


def judge_cover(
    observed: AllocationObserved, spares: Iterable[PlannedSpare], needed: Mapping[str, int]
) -> SpareCover:
    """Judge the Inferences in `needed`, which has the number of spares that each needs, by namespace/name.

    A new version has to be loaded by the spares too. An Inference that was covered stays so during the time of one load, as long
    as enough of its spares have ready pods: a reserve that starts in that time would end as soon as it serves.
    """
    planned = {spare.place: spare.models for spare in spares}
    before = {spare.place: spare.models for spare in observed.spare_plan.spares}
    serving: Counter[str] = Counter()
    ready: Counter[str] = Counter()
    for live in observed.live_spares:
        place = live.planned.place
        for name in planned.get(place, ()):
            key = f"{live.planned.namespace}/{name}"
            serving[key] += name in live.serving
            ready[key] += name in live.serving or (live.is_ready and name in before.get(place, ()))
    covered = {key for key, count in needed.items() if serving[key] >= count}
    load_times = {str(member.key): member.times.load_s or 0.0 for member in observed.members}
    reloading: dict[str, datetime] = {}
    for key in (needed.keys() & observed.spare_plan.covered) - covered:
        since = observed.spare_plan.reloading.get(key, observed.now)
        load_time = max(timedelta(seconds=load_times.get(key, 0.0)), _LEAST_LOAD_TIME)
        if ready[key] >= needed[key] and observed.now - since <= load_time:
            reloading[key] = since
    return SpareCover(frozenset(covered | reloading.keys()), reloading)


def list_kept(observed: AllocationObserved) -> Mapping[LoadedModel, datetime]:
    """Return the loaded models that stay if nothing needs them any more, with the time since when that is so.

    They were planned where they are, and were needed there within policy.dwell: thresholds are crossed again and again.
    """
    before, dwell = observed.spare_plan, parse_duration(observed.pool.spec.policy.dwell)
    planned = {(spare.place, name) for spare in before.spares for name in spare.models}
    loaded = {(live.planned.place, name) for live in observed.live_spares for name in live.serving}
    since = {model: before.kept_models.get(model, observed.now) for model in sorted(planned & loaded)}
    return {model: start for model, start in since.items() if observed.now - start < dwell}

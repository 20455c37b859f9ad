"""What each part of the allocator is worth: a day simulated without it, `python bench/policies.py --ablation`.

The day is that of policies.py, with nodes of eight slices of which some are lost, as in spares.py, and with an event at its middle
that doubles the demand for half of the real-time models for an hour. The world is the same for all arms; each arm lacks one part:

    forecast       plans for the present rates
    measured-load  starts as if replicas loaded in 30 s and drained in 10 s
    events         does not know the event
    value          takes every request of a tier for its mean value
    node-loss      holds nothing for the loss of a node; `strict-node-loss` what any loss takes
    move-cost      moves as if moves cost nothing
    peaks          does not hold replicas for the peak of the last minutes
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from policies import INTERVAL_S, Series, make_scenario
from spares import NOTICE_S, SLICES_PER_NODE, draw_outages

from tidegate.allocation.errors import MAX_AMOUNT
from tidegate.allocation.snapshot import DEFAULT_DRAIN_S, DEFAULT_LOAD_S, NodeLossInput
from tidegate.allocation.solver import Solver
from tidegate.api.compute_pool import AllocationPolicy
from tidegate.api.conditions import format_timestamp
from tidegate.api.inference import Tier
from tidegate.planning.allocator.event_calendar import EventCalendar, read_calendar
from tidegate.planning.allocator.node_losses import LOST_REQUEST_FACTOR
from tidegate.simulation.allocator_policy import AllocatorOptions, AllocatorPolicy
from tidegate.simulation.engine import run_policy
from tidegate.simulation.outcome import SimulationOutcome
from tidegate.simulation.scenario import Scenario

WHOLE = "all-parts"
EVENT_FACTOR = 2.0
LOST_EVERY_H = 72.0
BEGIN = datetime(2026, 11, 27, tzinfo=UTC)
"""A calendar has no times before the year 2000."""


def make_day(series: Series, options: argparse.Namespace) -> Scenario:
    """Return the day of a series with losses of nodes, and with an event that the calendar has."""
    day = make_scenario(series, options.models, options.hours, seed=7)
    nodes = max(day.pool.slices // SLICES_PER_NODE, 2)
    pool = replace(
        day.pool,
        nodes=nodes,
        slices=nodes * SLICES_PER_NODE,
        node_loss=NodeLossInput(LOST_EVERY_H * 3600, sum(NOTICE_S) / 2, LOST_REQUEST_FACTOR),
    )
    outages = draw_outages(nodes, options.hours, LOST_EVERY_H, seed=1)
    concerned = [model.key for model in day.select_tier(Tier.REALTIME)][::2]
    first = day.interval_count // 2
    running = range(first, first + round(3600 / INTERVAL_S))
    demand = {
        key: [
            rate * EVENT_FACTOR if key in concerned and step in running else rate
            for step, rate in enumerate(rates)
        ]
        for key, rates in day.demand.items()
    }
    names = [dict(zip(("namespace", "name"), key.split("/"), strict=True)) for key in concerned]
    begins = BEGIN + timedelta(seconds=first * INTERVAL_S)
    event = {
        "name": "sale",
        "at": format_timestamp(begins),
        "duration": "1h",
        "factor": f"{EVENT_FACTOR:g}",
        "inferences": names[:64],
    }
    policy = AllocationPolicy.model_validate({"events": [event]})
    calendar = read_calendar(policy, [model.load_s for model in day.models], BEGIN)
    return replace(day, pool=pool, outages=outages, demand=demand, begin=BEGIN, calendar=calendar)


def make_arms(day: Scenario, quantile: float) -> Mapping[str, tuple[Scenario, Scenario, AllocatorOptions]]:
    """Return the world of each arm, what its policy believes of it, and the parts of its policy."""
    parts = AllocatorOptions(forecast_quantile=quantile)
    guessed = tuple(replace(model, load_s=DEFAULT_LOAD_S, drain_s=DEFAULT_DRAIN_S) for model in day.models)
    means = {tier: _compute_mean_value(day, tier) for tier in Tier}
    equal = tuple(replace(model, value=means[model.tier]) for model in day.models)
    unplanned = replace(day, calendar=EventCalendar())
    unheld = replace(day, pool=replace(day.pool, node_loss=NodeLossInput(MAX_AMOUNT)))
    strict = replace(day, pool=replace(day.pool, node_loss=None))
    return {
        WHOLE: (day, day, parts),
        "forecast": (day, day, replace(parts, forecast_quantile=None)),
        "measured-load": (day, replace(day, models=guessed), parts),
        "events": (unplanned, unplanned, parts),
        "value": (day, replace(day, models=equal), parts),
        "node-loss": (unheld, unheld, parts),
        "strict-node-loss": (strict, strict, parts),
        "move-cost": (day, day, replace(parts, prices_moves=False)),
        "peaks": (day, day, replace(parts, holds_peaks=False)),
    }


def _compute_mean_value(day: Scenario, tier: Tier) -> float:
    """Return the mean value of the requests of a tier."""
    models = day.select_tier(tier)
    requests = {model.key: sum(day.demand[model.key]) for model in models}
    return sum(model.value * requests[model.key] for model in models) / sum(requests.values())


def measure_ablation(series: Series, options: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures of every arm on one series."""
    day = make_day(series, options)
    solver = Solver(time.monotonic)
    figures: dict[str, Any] = {}
    whole: SimulationOutcome | None = None
    for name, (world, believed, parts) in make_arms(day, options.quantile).items():
        began = time.monotonic()
        outcome = run_policy(world, AllocatorPolicy(name, believed, solver.solve, parts))
        whole = whole or outcome
        figures[name] = describe_arm(outcome, whole)
        print(
            f"{series.name:26} {name:16} {figures[name]} {time.monotonic() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return {"nodes": day.pool.nodes, "lost_nodes": len(day.outages), "arms": figures}


def describe_arm(outcome: SimulationOutcome, whole: SimulationOutcome) -> dict[str, Any]:
    """Return what an arm achieved, and what its missing part costs."""
    return {
        "value_lost": round(1 - outcome.total_value / whole.total_value, 5),
        "missed_minutes": round(outcome.missed_minutes, 1),
        "missed_minutes_more": round(outcome.missed_minutes - whole.missed_minutes, 1) + 0.0,
        "moved_slices": outcome.moved_slices,
    }


def summarize_series(measured: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return, for each arm, the mean over the series of the value that is lost and of the minutes missed more."""
    return {
        arm: {
            key: round(sum(series["arms"][arm][key] for series in measured) / len(measured), 5)
            for key in ("value_lost", "missed_minutes_more")
        }
        for arm in measured[0]["arms"]
    }

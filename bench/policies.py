"""P12: what allocation policies make of real days: value, missed minutes and moves, against other policies and an oracle.

    python bench/policies.py [--series nyc_taxi,...] [--folder DIR] [--hours 24] [--models 60] [--ablation] [--output FILE]

The load is a series of the Numenta Anomaly Benchmark (MIT): `--folder` has its CSV files. Sixty models in three tiers follow it, each
with a delay, a share and noise of its own, on a pool that is a tenth too small at the peaks. Two weeks of the series are the history
that forecasts and the fixed split look at; the next day is simulated by the minute. A replica takes 45 to 120 s to load.

The policies are Tidegate's with forecasts, with the present rates, and without the price of a move; and the baselines of
tidegate.simulation. The oracle is the allocator with the demand of each minute, and with replicas that load in no time. Prints one
JSON document, and a table to stderr; `--ablation` measures instead what each part of the allocator is worth (ablation.py).

Exits 1 unless Tidegate with forecasts serves 0.95 of the oracle's value in the geometric mean, and on each series more value than
each baseline, with at most half of the missed minutes that the present rates lead to and no more than any baseline.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from harness.figures import round_figures

from tidegate.allocation.snapshot import PoolInput, TierRule
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier
from tidegate.simulation.engine import run_policy
from tidegate.simulation.outcome import SimulationOutcome
from tidegate.simulation.policies import DESCRIPTIONS, FORECAST, FREE_MOVES, ORACLE, PRESENT, make_policy
from tidegate.simulation.scenario import Scenario, SimulatedModel

SERIES = (
    "nyc_taxi",
    "elb_request_count_8c0756",
    "Twitter_volume_AMZN",
    "Twitter_volume_FB",
    "exchange-2_cpc_results",
)
HISTORY_DAYS = 14
INTERVAL_S = 60.0
MEAN_RATE = 300.0
ROOM = 0.9
LEAST_OVER_ORACLE = 0.95
"""In the geometric mean of all series."""
MOST_OVER_PRESENT = 0.5
"""Missed minutes with forecasts over those with the present rates."""
BASELINES = tuple(name for name in DESCRIPTIONS if name not in {FORECAST, PRESENT, FREE_MOVES, ORACLE})
"""The other policies: none of them is the allocator."""


@dataclass(frozen=True, slots=True)
class Series:
    """A series as rates per minute, its mean 1."""

    name: str
    rates: Sequence[float]


def read_series(folder: Path, name: str) -> Series:
    """Return a series, by linear interpolation to one rate per minute."""
    with (folder / f"{name}.csv").open() as lines:
        rows = [
            (datetime.fromisoformat(row["timestamp"]), float(row["value"])) for row in csv.DictReader(lines)
        ]
    mean = sum(value for _, value in rows) / len(rows)
    rates: list[float] = []
    for (start, value), (end, following) in pairwise(rows):
        minutes = max(round((end - start).total_seconds() / 60), 0)
        rates += [(value + (following - value) * minute / minutes) / mean for minute in range(minutes)]
    return Series(name, rates)


def make_scenario(
    series: Series,
    models: int,
    hours: float,
    seed: int,
    *,
    mean_rate: float = MEAN_RATE,
    room: float = ROOM,
) -> Scenario:
    """Return models that follow a series: two thirds real-time, the rest near-line and offline.

    `mean_rate` is that of a model, and `room` the slices of the pool over those that the peaks need.
    """
    random = Random(seed)
    length, before = round(hours * 60), HISTORY_DAYS * 24 * 60
    before = min(before, len(series.rates) - length - 120)
    simulated: list[SimulatedModel] = []
    demand: dict[str, Sequence[float]] = {}
    history: dict[str, Sequence[float]] = {}
    for number in range(models):
        tier = (Tier.REALTIME, Tier.REALTIME, Tier.NEARLINE, Tier.REALTIME, Tier.OFFLINE, Tier.REALTIME)[
            number % 6
        ]
        key = f"ads/model-{number:02}"
        delay, share = random.randrange(120), random.uniform(0.3, 3.0)
        replica_rate = random.uniform(40, 120)
        slices = random.choice((1, 1, 1, 2))
        value = {Tier.REALTIME: 3.0, Tier.NEARLINE: 1.0, Tier.OFFLINE: 1.0}[tier] * random.uniform(0.5, 2.0)
        ceiling = None
        if tier is Tier.OFFLINE:
            # What a slice of offline work is worth per second, beside what a real-time slice serves.
            replica_rate, value, ceiling = float(slices), random.uniform(3, 12), 40
            rates = [float(40 * slices)] * (before + length)
        else:
            rates = [
                mean_rate * share * rate * math.exp(random.gauss(0, 0.03))
                for rate in series.rates[120 - delay : 120 - delay + before + length]
            ]
        simulated.append(
            SimulatedModel(
                key,
                tier,
                replica_rate,
                slices=slices,
                value=value,
                floor=1 if tier is Tier.REALTIME else 0,
                ceiling=ceiling,
                load_s=random.uniform(45, 120),
                drain_s=random.uniform(5, 20),
            )
        )
        history[key], demand[key] = rates[:before], rates[before:]
    peaks = sum(
        math.ceil(max(demand[model.key]) / model.replica_rate) * model.slices
        for model in simulated
        if model.tier is not Tier.OFFLINE
    )
    pool = PoolInput("pool", round(room * peaks), tiers=(TierRule(Tier.OFFLINE, floor=2),))
    return Scenario(pool, tuple(simulated), demand, INTERVAL_S, history=history)


def describe_outcome(outcome: SimulationOutcome, bound: float) -> dict[str, Any]:
    """Return the figures of a policy, those with a target not rounded; `bound` is the oracle's value."""
    return {
        "value_over_oracle": outcome.total_value / bound,
        "value": {tier.value: round(value) for tier, value in outcome.value.items()},
        "missed_minutes": outcome.missed_minutes,
        "backlog": round(outcome.backlog),
        "moved_slices": outcome.moved_slices,
        "idle_slice_hours": round(outcome.idle_slice_s / 3600, 1),
    }


def measure_series(series: Series, options: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures of every policy on one series."""
    scenario = make_scenario(series, options.models, options.hours, seed=7)
    outcomes: dict[str, SimulationOutcome] = {}
    solver = Solver(time.monotonic)
    for name in DESCRIPTIONS:
        began = time.monotonic()
        run_in, policy = make_policy(name, scenario, solver.solve, options.quantile)
        outcomes[name] = run_policy(run_in, policy)
        print(f"{series.name} {name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    bound = outcomes[ORACLE].total_value
    measured = {name: describe_outcome(outcome, bound) for name, outcome in outcomes.items()}
    for name, figures in measured.items():
        print(
            f"{series.name:26} {name:14} {figures['value_over_oracle']:.4f}  missed {figures['missed_minutes']:8.1f}"
            f"  moved {figures['moved_slices']:7}",
            file=sys.stderr,
        )
    return measured


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options of a bench that simulates days of the series."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--series", default=",".join(SERIES), help="separated by commas")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(__file__).resolve().parents[2] / "shared/data/nab",
        help="with the CSV files of the series",
    )
    parser.add_argument("--hours", type=float, default=24.0, help="that are simulated")
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--quantile", type=float, default=0.9, help="that policy forecast plans for")
    parser.add_argument("--output", type=Path)
    return parser


def measure_parts(options: argparse.Namespace) -> int:
    """Measure what each part of the allocator is worth."""
    from ablation import measure_ablation, summarize_series

    document = {
        name: measure_ablation(read_series(options.folder, name), options)
        for name in options.series.split(",")
    }
    write_document({"mean": summarize_series(list(document.values())), "series": document}, options.output)
    return 0


def write_document(document: Mapping[str, Any], path: Path | None) -> None:
    """Print a JSON document with rounded figures, and write it to a file if one is named."""
    text = json.dumps(round_figures(document, 5), indent=1)
    print(text)
    if path is not None:
        path.write_text(text + "\n")


def compute_means(document: Mapping[str, Mapping[str, Any]]) -> Mapping[str, float]:
    """Return each policy's value over the oracle's, in the geometric mean of all series."""
    return {
        policy: math.exp(
            sum(math.log(series[policy]["value_over_oracle"]) for series in document.values()) / len(document)
        )
        for policy in next(iter(document.values()))
    }


def find_missed_targets(means: Mapping[str, float], document: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what misses its target: `means` are of the value over the oracle's, the document has the figures of each series."""
    missed: list[str] = []
    if means[FORECAST] < LEAST_OVER_ORACLE:
        missed.append(f"value over the oracle {means[FORECAST]:g}, not {LEAST_OVER_ORACLE:g}")
    for name, policies in document.items():
        forecast, present = policies[FORECAST], policies[PRESENT]
        minutes = forecast["missed_minutes"]
        best = max(BASELINES, key=lambda baseline: policies[baseline]["value_over_oracle"])
        fewest = min(BASELINES, key=lambda baseline: policies[baseline]["missed_minutes"])
        if forecast["value_over_oracle"] <= policies[best]["value_over_oracle"]:
            missed.append(
                f"{name}: value {forecast['value_over_oracle']:g}, with {best} {policies[best]['value_over_oracle']:g}"
            )
        if minutes > MOST_OVER_PRESENT * present["missed_minutes"]:
            missed.append(
                f"{name}: {minutes:g} missed minutes, with the present rates {present['missed_minutes']:g}"
            )
        if minutes > policies[fewest]["missed_minutes"]:
            missed.append(
                f"{name}: {minutes:g} missed minutes, with {fewest} {policies[fewest]['missed_minutes']:g}"
            )
    return missed


def main() -> int:
    """Measure once."""
    parser = make_parser(__doc__)
    parser.add_argument("--ablation", action="store_true", help="leave out each part of the allocator")
    options = parser.parse_args()
    if options.ablation:
        return measure_parts(options)
    document = {
        name: measure_series(read_series(options.folder, name), options) for name in options.series.split(",")
    }
    summary = compute_means(document)
    missed = find_missed_targets(summary, document)
    result = {"geometric_mean_over_oracle": summary, "missed_targets": missed, "series": document}
    write_document(result, options.output)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

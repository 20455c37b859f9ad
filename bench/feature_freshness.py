"""How soon an event is in the answers, and how fast features over events are answered while events come in.

    python bench/feature_freshness.py [--seconds 30] [--rate 2000] [--output FILE]

A NATS stream has a day of a million clicks, drawn by harness/day_of_clicks.py, and gets `--rate` events of 100,000 users per
second, which the ingester reads beside a real Triton. Three loads run at the
same time: marked events of one user, published one after the other and asked for until they are in the answer; 200 requests per
second of 64 users and eight features; and requests of one user and 200 rows. Prints one JSON document with medians and p99 in
milliseconds; exits 1 if a request failed, an event was refused or lost, or a p99 is longer than its limit in MOST_P99_MS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nats
import numpy as np
import tritonclient.grpc.aio as triton_grpc
from harness.day_of_clicks import draw_day, list_messages
from harness.event_pod import MODEL, STREAM, SUBJECT, EventPod, SteadyPublisher, running_pod, say

from builders.events import DAY, HOUR, MINUTE, a_click_plan, clicks, of_clicks, of_feature, of_request, window
from tidegate_dataplane.contract import (
    Aggregate,
    Bucketize,
    Cross,
    EventSequence,
    FeaturePlan,
    NatsEvents,
    Ratio,
    TimeSince,
    Window,
)

USERS = 100_000
MARKED_USER = 10**9
MARKS_PER_S = 5
MOST_P99_MS = {"event_to_answer": 1000.0, "64_users_at_200_per_s": 5.0, "1_user_200_rows_at_20_per_s": 10.0}
FEATURES = (
    EventSequence(name="items", field=of_clicks("item_id"), last=50),
    EventSequence(name="pages", field=of_clicks("page"), last=50, buckets=1000),
    Window(name="shown_1h", window=window("item_id", Aggregate.COUNT, HOUR)),
    Window(name="clicked_1d", window=window("click", Aggregate.SUM, DAY, every_ms=MINUTE)),
    Window(name="last_item", window=window("item_id", Aggregate.LAST, 7 * DAY), default="-1"),
    Ratio(
        name="ctr",
        numerator=window("click", Aggregate.SUM, DAY),
        denominator=window("click", Aggregate.COUNT, DAY),
        prior=0.02,
        weight=20,
    ),
    Bucketize(name="idle_bucket", field=of_feature("idle"), boundaries=(1, 60, 3600)),
    Cross(name="last_x_position", fields=(of_feature("last_item"), of_request("position")), buckets=1000),
)


def make_plan(url: str) -> FeaturePlan:
    """Return the plan over the clicks; `idle` is read by another feature."""
    stream = clicks(nats=NatsEvents(url=url, stream=STREAM, subject=SUBJECT), max_events=256)
    features = (*FEATURES[:6], TimeSince(name="idle", entity="user", stream="clicks"), *FEATURES[6:])
    return a_click_plan(stream, features)


def make_event(number: int) -> Mapping[str, Any]:
    """Return a click of some user, now."""
    return {
        "user_id": number * 7919 % USERS,
        "ts": int(time.time() * 1000),
        "item_id": number,
        "click": number % 10 == 0,
        "price": number / 64,
        "page": f"page-{number % 20}",
    }


def make_inputs(users: Sequence[int]) -> list[Any]:
    """Return the inputs of one request."""
    tensors: list[Any] = []
    for name, values in {"user_id": users, "position": range(len(users))}.items():
        tensor = triton_grpc.InferInput(name, [len(users), 1], "INT64")
        tensor.set_data_from_numpy(np.array(list(values), dtype=np.int64)[:, None])
        tensors.append(tensor)
    return tensors


OUTPUTS = [triton_grpc.InferRequestedOutput(feature.name) for feature in FEATURES]


async def measure_delays(pod: EventPod, client: Any, until: float) -> list[float]:
    """Return the seconds from the publication of each marked event until an answer has it."""
    broker = await nats.connect(pod.broker.url)
    delays: list[float] = []
    wanted = [triton_grpc.InferRequestedOutput("last_item")]
    mark = 0
    while time.perf_counter() < until:
        mark += 1
        event = {**make_event(mark), "user_id": MARKED_USER, "item_id": mark}
        started = time.perf_counter()
        await broker.publish(SUBJECT, json.dumps(event).encode())
        await broker.flush()
        while True:
            answer = await client.infer(MODEL, make_inputs([MARKED_USER]), outputs=wanted)
            if answer.as_numpy("last_item").item() == mark:
                break
            await asyncio.sleep(0.001)
        delays.append(time.perf_counter() - started)
        await asyncio.sleep(1 / MARKS_PER_S)
    await broker.close()
    return delays


async def measure_requests(client: Any, rows: int, users: int, rate: float, until: float) -> list[float]:
    """Return the seconds of requests that are sent at random times, counted from when each was due."""
    choice = random.Random(rows)
    times: list[float] = []
    under_way = set[asyncio.Task[None]]()
    due = time.perf_counter()

    async def send_one(due: float) -> None:
        asked = [choice.randrange(USERS) for _ in range(users)]
        await client.infer(MODEL, make_inputs(asked * (rows // users)), outputs=OUTPUTS)
        times.append(time.perf_counter() - due)

    while (due := due + choice.expovariate(rate)) < until:
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        task = asyncio.create_task(send_one(due))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    return times


def summarize(seconds: Sequence[float]) -> Mapping[str, float]:
    """Return number, median and p99 in milliseconds."""
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 2),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 2),
    }


async def measure_all(pod: EventPod, seconds: float) -> Mapping[str, Any]:
    """Run each load on its own while events come in; return the figures."""
    client = triton_grpc.InferenceServerClient(pod.server.grpc)
    figures: dict[str, Any] = {}
    try:
        loads = {
            "event_to_answer": lambda until: measure_delays(pod, client, until),
            "64_users_at_200_per_s": lambda until: measure_requests(client, 64, 64, 200, until),
            "1_user_200_rows_at_20_per_s": lambda until: measure_requests(client, 200, 1, 20, until),
        }
        for name, run in loads.items():
            figures[name] = summarize(await run(time.perf_counter() + seconds))
            say(f"{name}: {figures[name]}")
    finally:
        await client.close()
    return figures


def find_missed_targets(figures: Mapping[str, Mapping[str, float]], refused: Mapping[str, int]) -> list[str]:
    """Return what misses its target in the figures of each load, and the events that were refused, by reason."""
    missed = [
        f"{load}: p99 {figures[load]['p99_ms']:g} ms, not {limit_ms:g}"
        for load, limit_ms in MOST_P99_MS.items()
        if figures[load]["p99_ms"] > limit_ms
    ]
    return missed + [f"{count} events refused: {reason}" for reason, count in refused.items() if count]


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load")
    parser.add_argument("--rate", type=float, default=2000.0, help="events per second")
    parser.add_argument("--history", type=int, default=1_000_000, help="events of the day before the loads")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with running_pod(make_plan) as pod:
        pod.serve_plan()
        day = draw_day(options.history, users=USERS, until_ms=int(time.time() * 1000))
        started = time.perf_counter()
        for first in range(0, options.history, 50_000):
            pod.publish(list(list_messages(day, first, first + 50_000)))
        pod.wait_until_stored()
        per_second = options.history / (time.perf_counter() - started)
        say(f"{options.history} events published and stored, {per_second:.0f} per second")
        with SteadyPublisher(pod.broker.url, make_event, options.rate) as publisher:
            figures = asyncio.run(measure_all(pod, options.seconds))
        pod.published += publisher.sent_count
        pod.wait_until_stored()
        (report,) = pod.read_reports()
    missed = find_missed_targets(figures, report.refused)
    result = {
        "history": {"events": options.history, "per_second": round(per_second)},
        "events_per_second": round(publisher.sent_count / (options.seconds * len(figures))),
        **figures,
        "refused": dict(report.refused),
        "missed_targets": missed,
    }
    text = json.dumps(result, indent=2)
    if options.output is not None:
        options.output.write_text(text + "\n")
    print(text)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())

"""How far `tidegate simulate` is from a real cluster: the same trace on a local cluster with real Tritons, and simulated.

    python bench/simulator_fidelity.py [--state-dir DIR] [--minutes 10] [--seed 1] [--run FILE]

On a local cluster (started when it does not run, and then ended) with the installed chart, real Tritons, gateways and a NATS
server, eight slices are shared by two real-time models of different values, a near-line one on a stream, and an offline
one that scores a table too long to end. A replica answers one request at a time and takes a fixed time for it, so that slices
limit what is served, and not the cores of this machine. The demand for each real-time model rises three times at once, that of
the stream once and slowly, and in the end there is a lull. Requests come evenly, at the rate of each tick, and each answer is checked by its value.

At each tick of 5 s it records the pods that have slices, the requests by the gateways' counters, and the messages
answered. Then `tidegate record` writes the pool with what the cluster measured, and the simulator runs the same trace
with the same policy. An Inference misses its SLO in a second in which more than one in a hundred of the requests due is late
or refused. The simulator knows one reason for that, too few replicas: so the minutes without enough replicas are compared
as well, which a machine with other work changes less.
At the end it asks `tidegate plan` what an override would do, applies it, and compares the decision.

With --run the cluster's part is kept in a file; where the file exists, it is read, and only simulated again.
Prints one JSON document; exits 1 where a figure of the simulator differs from the cluster's by more than 15 %, where the
what-if and the decision differ, or where an answer was wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Final

from harness.cluster_recorder import ClusterRecorder, PlayedStream, RequestPlayer
from harness.fidelity import (
    ComparedFigure,
    RunFigures,
    compare_figures,
    make_courses,
    measure_shortage,
    sample_course,
)
from harness.fidelity_run import ClusterRun, RunDecision, list_moves, load_run, save_run
from harness.three_tiers import (
    POOL,
    PoolShape,
    create_pool,
    make_specs,
    publish_models,
    read_slices,
)

from builders.slow_models import SlowModel
from builders.waiting import NotInTimeError, wait_until
from fixtures import installed
from fixtures.cluster import OPTIONS, start
from fixtures.installed import Installed, Space
from fixtures.installed_stream import a_broker
from tidegate.allocation.solver import Solver
from tidegate.api.compute_pool import ComputePool
from tidegate.api.inference import Inference, Tier
from tidegate.planning.pods import is_ready
from tidegate.services.manifests import read_manifests
from tidegate.simulation.changes import SimulatedDay
from tidegate.simulation.day import DayOptions, make_scenario
from tidegate.simulation.engine import run_policy
from tidegate.simulation.outcome import SimulationOutcome
from tidegate.simulation.policies import PRESENT, make_policy
from tidegate.simulation.trace import DemandTrace
from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.cluster import LocalCluster
from tidegate_localcluster.demo.errors import CommandError
from tidegate_localcluster.supplies import find_supplies

TICK_S: Final = 5.0
LEAD_TICKS: Final = 18
"""Before the trace, at its first rates: longer than a peak of the demand counts."""
LEAD_S: Final = round(LEAD_TICKS * TICK_S)
SHAPE: Final = PoolShape(slices=8, cpu_m=150, interval=f"{TICK_S:g}s", dwell="20s", node=1)
TIERS: Final = {"home": Tier.REALTIME, "feed": Tier.REALTIME, "rank": Tier.NEARLINE, "embed": Tier.OFFLINE}
VALUES: Final = {"home": 10.0, "feed": 4.0, "rank": 2.0, "embed": 1.0}
RANGES: Final = {
    "home": {"scaling": {"minReplicas": 1, "maxReplicas": 5}},
    "feed": {"scaling": {"minReplicas": 1, "maxReplicas": 5}},
    "rank": {"scaling": {"minReplicas": 1, "maxReplicas": 4}},
    "embed": {"scaling": {"minReplicas": 0, "maxReplicas": SHAPE.slices}},
}
ANSWER_MS: Final = 200.0
CAPACITY_PER_S: Final = 4.5
"""Of the five that a replica answers at most."""
SLO_S: Final = 2.5
LOAD_S: Final = 8.0
"""Of a real-time model, so that the time without enough replicas is long beside a second and a tick."""
CONCURRENT: Final = 8
"""Requests of one model at once: what one replica answers within the SLO, so that a gateway refuses what would be late."""
QUIET_S: Final = 15.0
"""No decision for so long: what was decided has been done, and the demand does not change it."""
STEERED: Final = "feed"
ATTEMPTS: Final = 3


def run_cluster(installation: Installed, options: argparse.Namespace) -> ClusterRun:
    """Play the trace on the cluster."""
    ticks = round(options.minutes * 60 / TICK_S)
    courses = make_courses(options.seed)
    rates = {name: sample_course(course, ticks, LEAD_TICKS) for name, course in courses.items()}
    with ExitStack() as stack:
        space = stack.enter_context(installed.a_space(installation, "bench-fidelity"))
        publish_models(space)
        for name in ("home", "feed"):
            SlowModel(f"{name}-even", 2.0, ANSWER_MS, load_s=LOAD_S).write(
                _cleared_folder(space, f"{name}-even")
            )
        stack.enter_context(create_pool(space, "Auto", SHAPE))
        stack.callback(_delete_inferences, space)
        url, work = stack.enter_context(a_broker(space, "rank"))
        _create_inferences(space, url)
        requests = {name: rates[name] for name, tier in TIERS.items() if tier is Tier.REALTIME}
        stream = PlayedStream(work.nats.url, work.subject, rates["rank"])
        recorder = ClusterRecorder(space, list(requests), TICK_S, work.kept)
        gateway = installation.endpoints.gateway
        player = RequestPlayer(gateway, requests, stream, TICK_S, SLO_S, options.seed, space.namespace)
        begins = datetime.now(UTC) + timedelta(seconds=LEAD_S)
        total = LEAD_TICKS + ticks
        with recorder, player:
            wait_until(
                lambda: len(recorder.ticks) >= total, "the trace is over", timeout_s=2 * total * TICK_S
            )
            decisions = [RunDecision.parse(body, begins) for body in _list_decisions(space, begins)]
            day = _record_day(installation, rates, begins)
            what_if = _try_what_if(space)
        wait_until(
            lambda: sum(work.unsettled()) == 0,
            "all messages are answered",
            timeout_s=120,
            evidence=work.unsettled,
        )
        total_slices = read_slices(space).get("total", 0)
        if total_slices != SHAPE.slices:
            recorder.problems[f"the pool has {total_slices} slices instead of {SHAPE.slices} in the end"] += 1
        return ClusterRun(
            ticks=recorder.ticks[LEAD_TICKS:total],
            missed={
                name: [
                    second - LEAD_S
                    for second in played.seconds.list_missed()
                    if LEAD_S <= second < total * TICK_S
                ]
                for name, played in player.played.items()
            },
            decisions=decisions,
            day=day,
            what_if=what_if,
            played={name: played.sum_up() for name, played in player.played.items()}
            | {"rank": {"sent": player.messages, "answered": work.kept(), "dead": len(work.dead())}},
            problems=dict(recorder.problems),
        )


def _cleared_folder(space: Space, model: str) -> Path:
    shutil.rmtree(space.folder(model), ignore_errors=True)
    return space.folder(model).parent


def _create_inferences(space: Space, url: str) -> None:
    specs = dict(make_specs(space, url, RANGES))
    home = specs["home"]
    even = {
        "capacity": {"requestsPerSecond": f"{CAPACITY_PER_S:g}"},
        "slo": {"latencyP99": f"{SLO_S * 1000:.0f}ms"},
    }
    for name in ("home", "feed"):
        model = {**home["model"], "uri": space.uri(f"{name}-even")}
        value = {"perRequest": f"{VALUES[name]:g}"}
        specs[name] = {**home, **RANGES[name], **even, "model": model, "value": value}
    for name, spec in specs.items():
        space.apply("Inference", name, spec)
    for name in ("home", "feed"):
        targets = [{"inference": name, "weight": 100}]
        route = {"name": "default", "targets": targets, "timeout": "15s"}
        space.apply("ModelAccess", name, {"routes": [route], "protection": {"maxConcurrent": CONCURRENT}})
    wait_until(
        lambda: all(any(map(is_ready, space.pods(name))) for name in specs),
        "every Inference has a pod that answers",
        timeout_s=240,
        evidence=lambda: {name: space.status("inference", name) for name in specs},
    )
    space.ready(*(f"{kind}/{name}" for name in ("home", "feed") for kind in ("inference", "modelaccess")))


def _delete_inferences(space: Space) -> None:
    """Delete them, and wait until their pods are gone: those of a Job would keep a namespace that is deleted at once."""
    space.kubectl.run("delete", "inference", "--all", "-n", space.namespace)
    wait_until(lambda: not any(map(space.pods, TIERS)), "the pods of the Inferences are gone", timeout_s=180)


def _list_decisions(space: Space, begin: datetime) -> Sequence[Mapping[str, Any]]:
    """Return the decisions of the pool since then, oldest first."""
    decisions = space.installed.api.list_items("/apis/tidegate.io/v1alpha1/allocationdecisions")
    ours = [
        decision
        for decision in decisions
        if decision["spec"]["pool"] == POOL and begin <= datetime.fromisoformat(decision["spec"]["at"])
    ]
    return sorted(ours, key=lambda decision: str(decision["spec"]["at"]))


def _record_day(
    installation: Installed, rates: Mapping[str, Sequence[float]], begins: datetime
) -> SimulatedDay:
    """Return the day of the pool that `tidegate record` writes, with the rates that were played in each tick.

    Those that Prometheus has are means of a minute.
    """
    with tempfile.TemporaryDirectory() as folder:
        prometheus = f"http://{installation.endpoints.prometheus}"
        since = begins - timedelta(seconds=LEAD_S)
        installation.tidegate(
            "record", POOL, "--prometheus", prometheus, "--from", since.isoformat(), "--step", "10s",
            "--directory", folder,
        )  # fmt: skip
        manifest = Path(folder, "pool.yaml")
        print(manifest.read_text(), file=sys.stderr)
        objects = read_manifests([manifest], "default").objects
    (pool,) = (item for item in objects if isinstance(item, ComputePool))
    inferences = [item for item in objects if isinstance(item, Inference)]
    keys = {item.key.name: str(item.key) for item in inferences}
    count = len(next(iter(rates.values())))
    times = tuple(number * TICK_S for number in range(count))
    trace = DemandTrace(times, {keys[name]: tuple(values) for name, values in rates.items()})
    return SimulatedDay(pool, inferences, trace)


def _try_what_if(space: Space) -> Mapping[str, Any]:
    try:
        return _compare_what_if(space)
    except (NotInTimeError, CommandError) as error:
        # What was measured in ten minutes is not thrown away.
        return {"asked": None, "decided": None, "problem": str(error)}


def _compare_what_if(space: Space) -> Mapping[str, Any]:
    """Ask what an override would do, apply it, and return both by Inference, with what was to be done before.

    Where demand or a slow machine made the allocator move something in between, it is asked again.
    """

    def list_all() -> Sequence[Mapping[str, Any]]:
        return _list_decisions(space, datetime.min.replace(tzinfo=UTC))

    def is_quiet() -> bool:
        newest = list_all()[-1]
        age = datetime.now(UTC) - datetime.fromisoformat(newest["spec"]["at"])
        return age >= timedelta(seconds=QUIET_S) and "outcome" in newest.get("status", {})

    tidegate, key = space.installed.tidegate, f"{space.namespace}/{STEERED}"
    answers: list[Mapping[str, Any]] = []
    for _ in range(ATTEMPTS):
        wait_until(
            is_quiet,
            "the allocator has nothing to do",
            timeout_s=300,
            evidence=lambda: list_all()[-1]["spec"],
        )
        floor = space.status("inference", STEERED)["allocation"]["replicas"] + 2
        count = len(list_all())
        unchanged = json.loads(tidegate("plan", POOL, "-o", "json"))
        asked = json.loads(tidegate("plan", POOL, "--min", f"{key}={floor}", "-o", "json"))
        tidegate("override", key, "--floor", str(floor), "--for", "10m", "--reason", "to compare")
        wait_until(lambda count=count: len(list_all()) > count, "a decision follows", evidence=list_all)
        first = list_all()[count]["spec"]
        tidegate("override", key, "--end")
        answers.append(
            {
                "floor": {STEERED: floor},
                "without": list_moves(unchanged["decision"]),
                "asked": list_moves(asked["decision"]),
                "decided": list_moves(first),
                "trigger": first.get("trigger"),
            }
        )
        if first.get("trigger") == "OverrideChanged" and not answers[-1]["without"]:
            break
    return {**answers[-1], "attempts": len(answers)}


def sum_cluster(run: ClusterRun) -> RunFigures:
    """Return the figures of the cluster; the value of offline work is that of the slices that work."""
    slice_minutes, value = dict.fromkeys(Tier, 0.0), dict.fromkeys(Tier, 0.0)
    missed_s, short = sum(map(len, run.missed.values())), 0.0
    rates = _select_rates(run, Tier.REALTIME)
    for number, tick in enumerate(run.ticks):
        for name, tier in TIERS.items():
            slice_minutes[tier] += tick.occupied.get(name, 0.0) * TICK_S / 60
        value[Tier.OFFLINE] += VALUES["embed"] * tick.ready.get("embed", 0.0) * TICK_S
        value[Tier.NEARLINE] += VALUES["rank"] * tick.messages
        for name, counts in tick.requests.items():
            value[Tier.REALTIME] += VALUES[name] * counts.answered
            short += measure_shortage(rates[name][number], CAPACITY_PER_S, tick.ready.get(name, 0.0))
    return RunFigures(
        slice_minutes,
        value,
        short * TICK_S / 60,
        missed_s / 60,
        sum(item.moved_slices for item in run.decisions),
    )


def _select_rates(run: ClusterRun, tier: Tier) -> Mapping[str, Sequence[float]]:
    """Return the rates in the time of the trace of the Inferences of a tier."""
    rates = {key.partition("/")[2]: rates for key, rates in run.day.trace.rates.items()}
    return {
        name: [rate or 0.0 for rate in rates[name][-len(run.ticks) :]]
        for name in TIERS
        if TIERS[name] is tier
    }


def simulate_trace(run: ClusterRun) -> SimulationOutcome:
    """Run the product's simulator over the same trace."""
    options = DayOptions(last=timedelta(seconds=TICK_S) * len(run.ticks), interval=timedelta(seconds=TICK_S))
    scenario = make_scenario(run.day, options, partial(print, file=sys.stderr))
    run_in, policy = make_policy(PRESENT, scenario, Solver(time.monotonic).solve, options.quantile)
    return run_policy(run_in, policy)


def sum_simulated(outcome: SimulationOutcome) -> RunFigures:
    """Return the figures of the simulator."""
    slice_minutes = {tier: seconds / 60 for tier, seconds in outcome.slice_s.items()}
    missed = outcome.missed_minutes
    return RunFigures(slice_minutes, outcome.value, missed, missed, outcome.moved_slices)


def list_missed(figures: Sequence[ComparedFigure], run: ClusterRun) -> list[str]:
    """Return what differs by more than it may, as text."""
    missed = [
        f"{figure.name}: {figure.simulated:.2f} simulated, {figure.cluster:.2f} on the cluster"
        for figure in figures
        if not figure.is_near
    ]
    if run.what_if["asked"] != run.what_if["decided"] or not run.what_if["asked"]:
        missed.append(f"what-if: {run.what_if['asked']} asked, {run.what_if['decided']} decided")
    wrong = sum(played.get("wrong", 0) + played.get("dead", 0) for played in run.played.values())
    stream = run.played["rank"]
    arrived = sum(counts.arrived for tick in run.ticks for counts in tick.requests.values())
    planned = sum(sum(rates) * TICK_S for rates in _select_rates(run, Tier.REALTIME).values())
    failures = {
        f"{arrived:.0f} requests arrived of {planned:.0f} in the trace": abs(arrived / planned - 1) > 0.02,
        f"{wrong} answers were wrong, or messages dead": wrong > 0,
        f"{stream['sent']} messages got {stream['answered']} answers": stream["sent"] != stream["answered"],
    }
    return [*missed, *(failure for failure, holds in failures.items() if holds)]


def main() -> int:
    """Measure once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state-dir", type=Path, default=default_home() / "clusters" / "fidelity")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the trace; 2 for a trial")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run", type=Path, help="file of what the cluster did at each tick")
    options = parser.parse_args()
    if options.run and options.run.exists():
        run = load_run(options.run)
    else:
        run = measure_cluster(options)
        if options.run:
            save_run(run, options.run)
    outcome = simulate_trace(run)
    _print_ticks(run, outcome)
    # A move of one replica is a slice that is given and one that is taken.
    figures = compare_figures(sum_cluster(run), sum_simulated(outcome), TICK_S, moved_slack=2.0)
    missed = list_missed(figures, run)
    report = {
        "minutes": len(run.ticks) * TICK_S / 60,
        "pressure": {
            "mean": round(mean(tick.pressure for tick in run.ticks), 1),
            "highest": max(tick.pressure for tick in run.ticks),
        },
        "figures": {
            figure.name: {
                "cluster": round(figure.cluster, 2),
                "simulated": round(figure.simulated, 2),
                "ratio": None if figure.ratio is None else round(figure.ratio, 3),
            }
            for figure in figures
        },
        "decisions": [asdict(decision) for decision in run.decisions],
        "what_if": run.what_if,
        "requests": run.played,
        "problems": run.problems,
        "missed": missed,
    }
    print(json.dumps(report, indent=2))
    return 1 if missed else 0


def measure_cluster(options: argparse.Namespace) -> ClusterRun:
    """Play the trace on the cluster, which is started when it does not run, and then ended."""
    cluster, show_step = LocalCluster(options.state_dir), partial(print, file=sys.stderr)
    is_ours = cluster.find_supervisor() is None
    try:
        if is_ours:
            start(cluster, find_supplies(default_home(), OPTIONS, None, show_step), show_step)
        values = {"models.allowPython": True}
        with installed.an_installation(cluster, show_step, values) as installation:
            return run_cluster(installation, options)
    finally:
        if is_ours:
            cluster.tear_down(show_step)


def _print_ticks(run: ClusterRun, outcome: SimulationOutcome) -> None:
    """Print the slices of each tier at each tick of both, on the cluster also those of each Inference that answer."""
    for tick, interval in zip(run.ticks, outcome.intervals, strict=True):
        cluster = {
            tier: sum(tick.occupied.get(name, 0.0) for name in TIERS if TIERS[name] is tier) for tier in Tier
        }
        slices = "  ".join(f"{tier.value} {cluster[tier]:4.1f} {interval.slices[tier]:4.1f}" for tier in Tier)
        missed_s = [
            second
            for seconds in run.missed.values()
            for second in seconds
            if 0 <= second - interval.start_s < TICK_S
        ]
        ready = {name: round(tick.ready.get(name, 0.0), 1) for name in TIERS}
        print(
            f"{interval.start_s:5.0f}  {slices}  missed {len(missed_s):2} {interval.missed_minutes * 60:4.1f} s  {ready}  {tick.pressure:3.0f} %",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())

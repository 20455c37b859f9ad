"""A tenant that writes whatever the API server takes, a proxy that lies, and whether anybody else notices.

    python bench/neighbours.py [--minutes 60] [--seed 1] [--output FILE]

Real: API server, scheduler, Kubernetes' controllers, two replicas of the controllers (the leader asks through the proxy that lies, the
other runs with asyncio's debug mode) and two xDS servers (likewise), each measured against the memory that the chart allows it.
Simulated: nodes, kubelets, agents, gateways. The policies that keep Tidegate's labels to its own ServiceAccounts are not installed, so
that all that the tenant writes is read. Asked once a second, all the time:

- no process has ended, each says that it lives, and holds less memory than its limit
- every key of a queue is in a lane, and no reconcile has crashed
- observedGeneration follows the generation of every object within 60 s, the tenant's own included
- nothing has held an event loop for more than 250 ms
- what the other tenant gets (statuses, Deployments, the gateways' configuration) is what it got before the tenant came

Prints one JSON document; exits 1 when one of these was ever false.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc.aio
import yaml
from harness.arbitrary_objects import HostileTenant, hostile_kinds
from harness.discovery import discover
from harness.lying_proxy import LyingProxy, run_lying_proxy
from harness.simulated_cluster import (
    SimulatedCluster,
    create_system_pods,
    make_namespace,
    make_object,
    process_memory_mib,
    simulated_cluster,
    wait_leading,
    wait_listening,
)
from prometheus_client.parser import text_string_to_metric_families

from tidegate.api.compute_pool import PolicyMode
from tidegate.api.quantities import parse_quantity
from tidegate.kube import kinds
from tidegate_localcluster.control_plane import LOOPBACK
from tidegate_localcluster.errors import NotReadyError
from tidegate_localcluster.fleet_demo import objects
from tidegate_localcluster.fleet_demo.api import ApiServerClient, RefusedError
from tidegate_localcluster.fleet_demo.site import make_credentials
from tidegate_localcluster.ports import find_unused_port
from tidegate_localcluster.process import ChildProcess
from tidegate_localcluster.supplies import find_source_root

Body = dict[str, Any]

VICTIM, HOSTILE = "shop", "odd"
"""The two tenants: each has a namespace and a pool of its name."""
NODES: Final = 12
"""Half of them are of the victim's pool, half take the hostile tenant's pods."""
STABLE: Final = tuple(f"s{number}" for number in range(6))
CHANGING: Final = tuple(f"c{number}" for number in range(6))
GATEWAYS: Final = 3
FOLLOWS_WITHIN_S: Final = 60.0
HELD_AT_MOST_S: Final = 0.25
CALM_WITHIN_S: Final = 120.0
EVERY_S: Final = 1.0
PROBE_WITHIN_S: Final = 10.0
MAX_VIOLATIONS: Final = 50
WRITES_PER_S: Final = 15.0
KINDS: Final = (
    kinds.INFERENCE,
    kinds.MODEL_ACCESS,
    kinds.FEATURE_COMPUTE,
    kinds.COMPUTE_POOL,
    kinds.COMPUTE_OVERRIDE,
)


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """One watched process."""

    process: ChildProcess
    probe: int
    """Port of the probes."""
    memory_limit_mib: float


@dataclass(slots=True)
class Verdict:
    """Violations, and other figures of the run."""

    began: float = field(default_factory=time.monotonic)
    violations: list[str] = field(default_factory=list[str])
    checks: Counter[str] = field(default_factory=Counter[str])
    memory_mib: dict[str, float] = field(default_factory=dict[str, float])
    loop_held: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])

    def record_check(self, name: str, holds: bool, describe: Callable[[], str]) -> None:
        """Count one evaluation of a check; record the description if it fails."""
        self.checks[name] += 1
        if not holds and len(self.violations) < MAX_VIOLATIONS:
            violation = f"{time.monotonic() - self.began:.0f} s: {name}: {describe()}"
            self.violations.append(violation)
            print(violation, file=sys.stderr)


def make_pool(tenant: str, mode: PolicyMode) -> Body:
    """Return a pool of the tenant's nodes, with its name."""
    spec = {
        "nodeSelector": {"tenant": tenant},
        "slice": {"cpu": {"cpu": "500m", "memory": "256Mi"}},
        "policy": {"mode": mode.value},
    }
    return make_object("ComputePool", tenant, spec)


def make_inference(name: str) -> Body:
    """Return an Inference of the victim in its own pool."""
    spec = {
        "model": {"name": "ranker", "uri": "file:///models/ranker", "version": "1"},
        "placement": {"pool": VICTIM},
        "scaling": {"minReplicas": 1, "maxReplicas": 2},
        "value": {"perRequest": "1"},
    }
    return make_object("Inference", name, spec, VICTIM)


def make_access(name: str, *targets: tuple[str, int]) -> Body:
    """Return a ModelAccess of the victim with weights."""
    routed = [{"inference": inference, "weight": weight} for inference, weight in targets]
    spec = {"hosts": [f"{name}.example.com"], "routes": [{"name": "default", "targets": routed}]}
    return make_object("ModelAccess", name, spec, VICTIM)


class Victim:
    """The tenant that must not be disturbed: some objects that stay the same, and some that change all the time."""

    def __init__(
        self, api: ApiServerClient, contents: str, session: aiohttp.ClientSession, choice: random.Random
    ) -> None:
        """Read what an xDS server sends from the URL `contents`."""
        self._api, self._contents, self._session, self._choice = api, contents, session, choice
        self.changes: Counter[str] = Counter()
        self._present: set[str] = set()

    async def create_objects(self) -> None:
        """Create the stable objects."""
        # Each decision that is executed is in a status, and what the victim gets must not change by itself.
        await self._api.create(kinds.COMPUTE_POOL.url_path(), make_pool(VICTIM, PolicyMode.RECOMMEND_ONLY))
        for name in STABLE:
            await self._api.create(kinds.INFERENCE.url_path(VICTIM), make_inference(name))
        for number, name in enumerate(STABLE[:3]):
            body = make_access(name, (STABLE[number], 90), (STABLE[number + 3], 10))
            await self._api.create(kinds.MODEL_ACCESS.url_path(VICTIM), body)

    async def change_object(self) -> None:
        """Create, change or delete one of the changing objects, or end its pods."""
        name = self._choice.choice(CHANGING)
        inference, route = kinds.INFERENCE.url_path(VICTIM, name), kinds.MODEL_ACCESS.url_path(VICTIM, name)
        if name not in self._present:
            await self._api.create(kinds.INFERENCE.url_path(VICTIM), make_inference(name))
            await self._api.create(kinds.MODEL_ACCESS.url_path(VICTIM), make_access(name, (name, 1)))
            self._present.add(name)
            kind_of_change = "create"
        elif (chance := self._choice.random()) < 0.2:
            await self._api.call("DELETE", route)
            await self._api.call("DELETE", inference)
            self._present.discard(name)
            kind_of_change = "delete"
        elif chance < 0.5:
            scaling = {"minReplicas": self._choice.randint(1, 2)}
            await self._api.call("PATCH", inference, {"spec": {"scaling": scaling}})
            kind_of_change = "replicas"
        elif chance < 0.8:
            changed = make_access(name, (name, self._choice.randint(1, 100)))
            await self._api.call("PATCH", route, {"spec": changed["spec"]})
            kind_of_change = "weights"
        else:
            pods = await self._api.list_objects(
                f"{kinds.POD.url_path(VICTIM)}?labelSelector=tidegate.io/inference%3D{name}"
            )
            for pod in pods:
                await self._api.call("DELETE", kinds.POD.url_path(VICTIM, pod["metadata"]["name"]))
            kind_of_change = "end pods"
        self.changes[kind_of_change] += 1

    async def read_state(self) -> Mapping[str, Any]:
        """Return the state of the stable objects, without times and versions."""
        state: dict[str, Any] = {}
        for kind in (kinds.INFERENCE, kinds.MODEL_ACCESS):
            for body in await self._api.list_objects(kind.url_path(VICTIM)):
                if body["metadata"]["name"] in STABLE:
                    state[f"{kind.plural}/{body['metadata']['name']}"] = strip_times(body.get("status") or {})
        for body in await self._api.list_objects(kinds.DEPLOYMENT.url_path(VICTIM)):
            if body["metadata"]["labels"].get("tidegate.io/inference") in STABLE:
                available = (body.get("status") or {}).get("availableReplicas", 0)
                state[f"deployments/{body['metadata']['name']}"] = [body["spec"], available]
        for name in STABLE[:3]:
            state[f"routed/{name}"] = await self._read_resources(f"access/{VICTIM}/{name}")
        for name in STABLE:
            state[f"endpoints/{name}"] = await self._read_resources(f"inference/{VICTIM}/{name}/grpc")
        return state

    async def _read_resources(self, name: str) -> Any:
        try:
            async with self._session.get(self._contents, params={"name": name}) as answer:
                return (await answer.json())["resources"] if answer.status == 200 else answer.status
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            return f"no answer: {error!r}"


def strip_times(value: Any) -> Any:
    """Return the value without what changes with time alone, or belongs to gateways that come and go."""
    if isinstance(value, dict):
        left_out = {"lastTransitionTime", "proxies", "gateways", "observedAt"}
        return {name: strip_times(inner) for name, inner in value.items() if name not in left_out}
    return [strip_times(inner) for inner in value] if isinstance(value, list) else value


def iter_differences(earlier: Any, current: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two bodies differ."""
    if isinstance(earlier, dict) and isinstance(current, dict):
        for name in sorted(earlier.keys() | current.keys()):
            yield from iter_differences(earlier.get(name), current.get(name), f"{path}.{name}")
    elif isinstance(earlier, list) and isinstance(current, list) and len(earlier) == len(current):
        for number, (old_item, new_item) in enumerate(zip(earlier, current, strict=True)):
            yield from iter_differences(old_item, new_item, f"{path}[{number}]")
    elif earlier != current:
        yield f"{path} was {earlier} and is {current}"


def list_unready(state: Mapping[str, Any]) -> Sequence[str]:
    """Return the stable objects that are missing, not ready or not routed, with their state."""
    expected = (
        *(f"inferences/{name}" for name in STABLE),
        *(f"modelaccesses/{name}" for name in STABLE[:3]),
        *(name for name in state if name.startswith(("routed/", "endpoints/"))),
    )
    return [f"{name}: {state.get(name)}" for name in expected if not _is_good(state.get(name))]


def _is_good(value: Any) -> bool:
    """Return whether a status has Ready=True, or an xDS server returned resources instead of an HTTP status."""
    if not isinstance(value, dict):
        return False
    conditions = value.get("conditions")
    return conditions is None or any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


@dataclass(slots=True)
class Oracles:
    """Evaluates all checks once a second."""

    api: ApiServerClient
    session: aiohttp.ClientSession
    replicas: Sequence[WatchedProcess]
    victim: Victim
    verdict: Verdict
    before: Mapping[str, Any]
    behind_since: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    unanswered: int = 0
    """Number of checks that were left out because the API server itself did not answer."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                await self.check_all()
            except (RefusedError, OSError, aiohttp.ClientError, TimeoutError):
                self.unanswered += 1
            await asyncio.sleep(EVERY_S)

    async def wait_followed(self) -> None:
        """Check generations until all are observed, or there is a violation, such as one that is late."""
        while self.behind_since and not self.verdict.violations:
            await asyncio.sleep(EVERY_S)
            await self._check_generations()

    async def check_all(self) -> None:
        """Evaluate each check once."""
        for replica in self.replicas:
            await self._check_process(replica)
        await self._check_generations()
        state = await self.victim.read_state()
        for name in sorted(self.before.keys() | state.keys()):
            earlier, current = self.before.get(name), state.get(name)
            self.verdict.record_check(
                "same for the victim",
                earlier == current,
                lambda: f"{name}: {'; '.join(iter_differences(earlier, current))}",  # noqa: B023
            )

    async def _check_process(self, replica: WatchedProcess) -> None:
        process, verdict = replica.process, self.verdict
        verdict.record_check(
            "no process ends", process.running, lambda: f"{process.name}: {log_tail(process)}"
        )
        if process.pid is None:
            return
        peak_mib = process_memory_mib(process.pid)[1]
        verdict.memory_mib[process.name] = round(peak_mib, 1)
        limit = replica.memory_limit_mib
        verdict.record_check(
            "memory", peak_mib <= limit, lambda: f"{process.name}: {peak_mib:.0f} of {limit:.0f} MiB"
        )
        status, text = await self._get_page(replica.probe, "healthz")
        verdict.record_check("lives", status == 200, lambda: f"{process.name} answers {status}: {text}")
        _, page = await self._get_page(replica.probe, "metrics")
        held_by_bucket, crashed = parse_health_metrics(page)
        verdict.loop_held[process.name] = held_by_bucket
        above_limit = held_by_bucket.get("all", 0) - held_by_bucket.get(f"{HELD_AT_MOST_S:g}", 0)
        verdict.record_check(
            "event loop",
            above_limit == 0,
            lambda: f"{process.name}: held {above_limit:g} times for more than 250 ms",
        )
        verdict.record_check("no reconcile crashes", crashed == 0, lambda: f"{process.name}: {crashed:g}")

    async def _get_page(self, port: int, page: str) -> tuple[int, str]:
        url = f"http://{LOOPBACK}:{port}/{page}"
        try:
            async with self.session.get(url, timeout=aiohttp.ClientTimeout(total=PROBE_WITHIN_S)) as answer:
                return answer.status, await answer.text()
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            return 0, f"{type(error).__name__} {error}"

    async def _check_generations(self) -> None:
        checked_at, behind = time.monotonic(), dict[tuple[str, int], float]()
        for kind in KINDS:
            for body in await self.api.list_objects(kind.url_path()):
                metadata, status = body["metadata"], body.get("status") or {}
                if metadata.get("deletionTimestamp"):
                    continue
                name = f"{kind.plural}/{metadata.get('namespace', '')}/{metadata['name']}"
                generation, observed = metadata["generation"], status.get("observedGeneration", 0)
                key = name, generation
                if observed < generation:
                    behind[key] = self.behind_since.get(key, checked_at)
                late = checked_at - behind.get(key, checked_at)
                self.verdict.record_check(
                    "observedGeneration",
                    late <= FOLLOWS_WITHIN_S,
                    lambda: f"{name} is at {observed} of {generation} for {late:.0f} s",  # noqa: B023
                )
        self.behind_since = behind


def parse_health_metrics(page: str) -> tuple[dict[str, float], float]:
    """Return how often the event loop was held, by bucket, and the number of crashed reconciles."""
    held_by_bucket, crashed = dict[str, float](), 0.0
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "tidegate_event_loop_held_seconds_bucket":
                bound = sample.labels["le"]
                held_by_bucket["all" if bound == "+Inf" else f"{float(bound):g}"] = sample.value
            elif sample.name == "tidegate_reconciles_total" and sample.labels["result"] == "crashed":
                crashed += sample.value
    return held_by_bucket, crashed


def log_tail(process: ChildProcess) -> str:
    """Return the end of the process's log."""
    return process.log.read_text()[-2_000:]


def memory_limit_mib(component: str) -> float:
    """Return the chart's memory limit of a component."""
    values = yaml.safe_load((find_source_root() / "charts" / "tidegate" / "values.yaml").read_text())
    return float(parse_quantity(values[component]["resources"]["limits"]["memory"])) / 2**20


async def repeat_act(per_s: float, act: Callable[[], Any], errors: Counter[str]) -> None:
    """Do something so many times a second, until cancelled; count the errors."""
    while True:
        began = time.monotonic()
        try:
            await act()
        except (RefusedError, OSError, aiohttp.ClientError, TimeoutError) as error:
            errors[str(error)[:80]] += 1
        await asyncio.sleep(max(1 / per_s - (time.monotonic() - began), 0.0))


async def stay_connected(node: str, port: int) -> None:
    """Keep a gateway's stream open, also over restarts of the server, until cancelled."""
    while True:
        with suppress(grpc.aio.AioRpcError):
            await discover(node, port, lambda _: None)
        await asyncio.sleep(EVERY_S)


async def come_and_go(node: str, ports: Sequence[int], choice: random.Random) -> None:
    """Open and close a gateway's stream repeatedly, until cancelled."""
    while True:
        with suppress(TimeoutError):
            stream = stay_connected(node, choice.choice(ports))
            await asyncio.wait_for(stream, choice.uniform(2.0, 20.0))


@dataclass(frozen=True, slots=True)
class NeighbourScene:
    """All processes, before the run."""

    cluster: SimulatedCluster
    proxies: Sequence[LyingProxy]
    replicas: Sequence[WatchedProcess]
    xds_ports: Sequence[int]
    contents: str


@asynccontextmanager
async def start_limit(condition: str) -> AsyncGenerator[None]:
    """Raise NotReadyError when the block, which waits for `condition`, takes longer than a start may."""
    try:
        async with asyncio.timeout(CALM_WITHIN_S):
            yield
    except TimeoutError as error:
        message = f"not within {CALM_WITHIN_S:g} s: {condition}"
        raise NotReadyError(message) from error


@asynccontextmanager
async def start_scene(files: Path, seed: int) -> AsyncGenerator[NeighbourScene]:
    """Start all processes while the block lasts."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(simulated_cluster(files, NODES))
        for number in range(NODES):
            name = objects.make_node(number)["metadata"]["name"]
            labels = {"tenant": VICTIM if number % 2 else HOSTILE}
            await cluster.api.call("PATCH", kinds.NODE.url_path(name=name), {"metadata": {"labels": labels}})
        for namespace in (VICTIM, HOSTILE):
            await make_namespace(cluster.api, namespace)
        rights = objects.read_rbac(
            find_source_root(), "Role", "xds-auth", objects.USERS["xds"], namespace=HOSTILE
        )
        for path, body in rights:
            await cluster.api.apply(path, body)
        await create_system_pods(cluster.api, GATEWAYS)
        proxies: list[LyingProxy] = []
        servers: dict[str, str] = {}
        for number, command in enumerate(("controllers", "xds")):
            server, proxy = await stack.enter_async_context(
                run_lying_proxy(
                    cluster.control_plane.server_url,
                    cluster.pki,
                    make_credentials(command, cluster.pki),
                    seed + number,
                )
            )
            servers[command] = server
            proxies.append(proxy)
        reports, contents, debug = (
            find_unused_port(LOOPBACK),
            find_unused_port(LOOPBACK),
            {"PYTHONASYNCIODEBUG": "1"},
        )
        shown = {"TIDEGATE_REPORT_PORT": str(reports), "TIDEGATE_CONTENTS_PORT": str(contents)}
        hidden = {name: str(find_unused_port(LOOPBACK)) for name in shown}
        replicas: list[WatchedProcess] = []
        xds_ports: list[int] = []
        for name, server, ports in (("xds", servers["xds"], hidden), ("xds-debug", "", {**shown, **debug})):
            probe, port = find_unused_port(LOOPBACK), find_unused_port(LOOPBACK)
            environment = {
                "TIDEGATE_PROBE_PORT": str(probe),
                "TIDEGATE_XDS_PORT": str(port),
                "TIDEGATE_AUTH_NAMESPACES": json.dumps([HOSTILE]),
                **ports,
            }
            process = stack.enter_context(cluster.run_xds(environment, name=name, server=server))
            replicas.append(WatchedProcess(process, probe, memory_limit_mib("xds")))
            xds_ports.append(port)
        for name, server, further in (
            ("controllers", servers["controllers"], {}),
            ("controllers-debug", "", debug),
        ):
            probe = find_unused_port(LOOPBACK)
            environment = {"TIDEGATE_PROBE_PORT": str(probe), "TIDEGATE_REPORT_PORT": str(reports), **further}
            process = stack.enter_context(cluster.run_controllers(environment, name=name, server=server))
            replicas.append(WatchedProcess(process, probe, memory_limit_mib("controllers")))
            if server:
                async with start_limit(f"{name} leads"):
                    await wait_leading(cluster, process)
        async with start_limit(f"{replicas[1].process.name} listens"):
            await wait_listening(replicas[1].process, LOOPBACK, contents)
        snapshots = f"http://{LOOPBACK}:{contents}/v1/snapshots/current"
        yield NeighbourScene(cluster, proxies, replicas, xds_ports, snapshots)


async def wait_calm(victim: Victim) -> Mapping[str, Any]:
    """Return the victim's state once all of it is ready and unchanged. Raises NotReadyError."""
    before: Mapping[str, Any] = {}
    deadline = time.monotonic() + CALM_WITHIN_S
    while time.monotonic() < deadline:
        with suppress(TimeoutError):
            state = await victim.read_state()
            if state == before and not list_unready(state):
                return state
            before = state
        await asyncio.sleep(2 * EVERY_S)
    raise NotReadyError("\n".join((f"not ready after {CALM_WITHIN_S:g} s:", *list_unready(before))))


async def measure_neighbours(files: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the whole measurement."""
    errors, choice, verdict = Counter[str](), random.Random(options.seed), Verdict()
    timeout = aiohttp.ClientTimeout(total=PROBE_WITHIN_S)
    async with start_scene(files, options.seed) as scene, aiohttp.ClientSession(timeout=timeout) as session:
        api = scene.cluster.api
        victim = Victim(api, scene.contents, session, choice)
        tenant = HostileTenant(api, hostile_kinds(HOSTILE, STABLE[0], VICTIM), random.Random(options.seed))
        gateways = [
            asyncio.create_task(stay_connected("gateway-0", scene.xds_ports[-1])),
            *(
                asyncio.create_task(come_and_go(f"gateway-{number}", scene.xds_ports, choice))
                for number in range(1, GATEWAYS)
            ),
        ]
        async with start_limit("the victim's objects are there"):
            await victim.create_objects()
            # Autoscalers are bounded only where decisions are executed.
            await api.create(kinds.COMPUTE_POOL.url_path(), make_pool(HOSTILE, PolicyMode.AUTO))
        oracles = Oracles(api, session, scene.replicas, victim, verdict, await wait_calm(victim))
        verdict.began = time.monotonic()
        for proxy in scene.proxies:
            proxy.lies = True
        noise = [
            asyncio.create_task(repeat_act(per_s, act, errors))
            for per_s, act in (
                (options.writes_per_s, tenant.write_object),
                (options.writes_per_s / 3, tenant.change_metadata),
                (1.0, victim.change_object),
            )
        ]
        watcher = asyncio.create_task(oracles.run())
        await asyncio.wait([watcher, *noise, *gateways], timeout=options.minutes * 60)
        ended = [task for task in (*noise, *gateways, watcher) if task.done()]
        for task in (*noise, watcher):
            task.cancel()
        for task in ended:
            task.result()
        for proxy in scene.proxies:
            proxy.lies = False
            proxy.stop_lying()
        await oracles.check_all()
        await oracles.wait_followed()
        for task in gateways:
            task.cancel()
        await tenant.delete_cluster_objects()
        verdict.record_check(
            "hostile kinds",
            not tenant.list_unaccepted(),
            lambda: f"nothing taken of {tenant.list_unaccepted()}",
        )
        lies_told = sum((proxy.lies_told for proxy in scene.proxies), Counter[Any]())
        return {
            "minutes": options.minutes,
            "violations": verdict.violations,
            "checks": dict(verdict.checks),
            "unanswered": oracles.unanswered,
            "memory_mib": verdict.memory_mib,
            "event_loop_held": verdict.loop_held,
            "lies_met": dict(lies_told),
            "hostile_taken": dict(tenant.accepted),
            "hostile_refused": dict(tenant.rejected),
            "victim_changes": dict(victim.changes),
            "own_errors": dict(errors.most_common(20)),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument(
        "--writes-per-s", type=float, default=WRITES_PER_S, help="objects that the tenant writes per second"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--files", type=Path, help="folder for logs and all other files")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tidegate-neighbours-") as folder:
        result = asyncio.run(measure_neighbours(options.files or Path(folder), options))
    text = json.dumps(result, indent=2, ensure_ascii=False)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())

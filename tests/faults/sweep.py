"""Runs scenarios with and without faults, and says where a run with a fault ends otherwise than one without."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from builders import waiting
from faults import invariants
from faults.injections import EveryMove, Fault, WatchFault, When, WriteDeed, WriteFault
from faults.kubelet import Kubelet, a_node
from faults.operator_process import Nursery, OperatorProcess
from faults.proxy import Proxy, Trace
from faults.scenarios import NAME, Pool, Scenario, Step
from faults.traffic import Traffic
from faults.watches import ArmedWatch
from faults.world import INFERENCE, POOLS, World, decisions_of, world
from tidegate_dataplane.contract import DesiredState
from tidegate_localcluster.fleet_demo.api import ApiServerClient

SYSTEM: Final = "tidegate-system"
USER: Final = f"system:serviceaccount:{SYSTEM}:tidegate-controllers"
_LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/tidegate-controllers"
_BYSTANDER: Final = "bystander"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a run may take, and how long nothing must happen before it counts as settled."""

    settles_s: float = 60.0
    quiet_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: whether its fault struck, how it ended, and everything that was wrong with that."""

    scenario: str
    fault: str
    struck: bool
    seconds: float
    """From the first step of the scenario to the end of the last one, the quiet moment not counted."""
    steps: tuple[str, ...]
    problems: tuple[str, ...]
    world: World = field(repr=False)
    others: Mapping[str, int] = field(default_factory=dict[str, int])


class NotSettledError(Exception):
    """A step did not end as it should in time."""


class Sweep:
    """A control plane, a kubelet, a proxy and an operator, over which one run follows the other."""

    def __init__(self, api: ApiServerClient, folder: Path, settings: Mapping[str, str]) -> None:
        self.api = api
        self.models = folder / "models"
        self.proxy = Proxy(api.server, api.tls, user=USER)
        self.kubelet = Kubelet(api, folder / "pods", self.models, self)
        self.patience = Patience()
        self._folder = folder
        self._nursery = Nursery(folder / "operators", settings)
        self._numbers = itertools.count(1)
        self._operator: OperatorProcess | None = None
        self._restart: asyncio.Task[None] | None = None
        self._bystander: Mapping[str, str] = {}
        self._pool: Pool | None = None
        self.restarts = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Sweep]:
        """Everything up and the operator leading, for as long as the block lasts."""
        async with self.proxy, self._nursery, self.kubelet:
            await self.api.call("POST", "/api/v1/nodes", a_node())
            self.proxy.kill = self._kill
            self.proxy.histories = self._histories
            self._operator = await self._nursery.bear(self.proxy)
            try:
                await self.wait_for(self._leading, "the operator leads", 90)
                await self._plant_bystander()
                yield self
            finally:
                await self._end()

    @asynccontextmanager
    async def broken(self, before: str, patience: Patience) -> AsyncIterator[None]:
        """While the block lasts, another operator works: one in which the Python `before` has run."""
        kept, self.patience, self._nursery.before = self.patience, patience, before
        await self._replace_operator()
        try:
            yield
        finally:
            self.patience, self._nursery.before = kept, ""
            await self._replace_operator()

    async def before(self, namespace: str, pod: str, order: DesiredState) -> object:
        """See agents.OrderGate: an order is a step of its run like a write."""
        trace = self.proxy.trace
        if namespace != trace.namespace:
            return None
        fault = trace.add(Traffic.ORDER, f"order version {order.version}", order.epoch)
        del pod
        if fault is not None and fault.when is When.BEFORE:
            self.proxy.strike(fault)
        return fault

    async def after(self, token: object) -> None:
        """See agents.OrderGate."""
        if isinstance(token, WriteFault):
            self.proxy.strike(token)

    async def run(self, scenario: Scenario, fault: Fault, reference: World | None = None) -> Outcome:
        """One run in a namespace of its own."""
        namespace = f"run-{next(self._numbers)}"
        problems: list[str] = []
        await self._make_namespace(namespace)
        self._pool = scenario.pool
        if scenario.pool is not None:
            await self._make_pool(namespace, scenario.pool)
        for step in scenario.before:
            await self._take(namespace, step)
        self.kubelet.look(namespace, NAME if scenario.pool is not None else "")
        if isinstance(fault, WriteFault) and fault.stale_s:
            await self.proxy.remember()
        trace = self.proxy.trace = Trace(
            namespace,
            fault if isinstance(fault, WriteFault | EveryMove) else None,
            ArmedWatch(fault) if isinstance(fault, WatchFault) else None,
        )
        began, generations = time.monotonic(), 0
        try:
            for step in scenario.steps:
                generations += 1
                await self._take(namespace, step)
        except NotSettledError as error:
            problems.append(str(error))
        seconds = max(trace.touched_at, self.kubelet.touched_at) - began
        end, differences = await self._compared(namespace, reference)
        problems += await invariants.broken(self, namespace, scenario, trace)
        problems += await self._disturbed()
        problems += differences
        await self._clean_up(namespace)
        return Outcome(
            scenario.name,
            str(fault),
            trace.has_struck,
            round(seconds, 3),
            tuple(step.what for step in trace.steps),
            tuple(problems),
            end,
            {str(kind): count for kind, count in trace.others.items()},
        )

    async def every_write(
        self,
        scenario: Scenario,
        reference: Outcome,
        deed: WriteDeed = WriteDeed.KILL,
        *,
        stale_s: float = 0.0,
    ) -> AsyncIterator[Outcome]:
        """A run for each write and each side of it, until there is no such write any more.

        How many there are varies by one or two, since a status is written as often as it changes: a write of the
        reference run that this run did not come to is an outcome that has not `struck`.
        """
        for number in itertools.count(1):
            for when in When:
                outcome = await self.run(scenario, WriteFault(number, when, deed, stale_s), reference.world)
                if not outcome.struck and number > len(reference.steps):
                    return
                yield outcome

    # What a run is made of.

    async def _take(self, namespace: str, step: Step) -> None:
        path, name = INFERENCE.format(namespace), step.name
        if step.spec is None:
            await self.api.call("DELETE", f"{path}/{name}", {"propagationPolicy": "Background"})
        elif await self.api.get(f"{path}/{name}") is None:
            await self.api.call("POST", path, self._inference(namespace, name, step.spec))
        else:
            await self.api.call("PATCH", f"{path}/{name}", {"spec": step.spec})
        if step.waits:
            await self._ended(namespace, step)

    async def _compared(self, namespace: str, reference: World | None) -> tuple[World, Sequence[str]]:
        """The end, and where it differs for good: a successor on a busy machine may be a moment behind its pods."""
        patience = waiting.Patience(self.patience.settles_s / 6)
        while True:
            end = await world(self.api, namespace, str(self.models), self.kubelet.agents(namespace))
            differences = end.differences(reference) if reference is not None else ()
            if not differences or (patience.is_over() and not self._restarting):
                return end, differences
            await asyncio.sleep(0.3)

    async def _ended(self, namespace: str, step: Step) -> None:
        """Waits until the step has ended as it should and nothing moves any more (I8); each new operator takes its time."""
        patience, restarts = waiting.Patience(self.patience.settles_s), self.restarts
        why = ""
        while not patience.is_over():
            if self.restarts > restarts:
                patience, restarts = waiting.Patience(self.patience.settles_s), self.restarts
            await asyncio.sleep(0.1)
            why = await self._missing(namespace, step)
            still = time.monotonic() - max(self.proxy.trace.touched_at, self.kubelet.touched_at)
            if not why and not self._restarting and still >= self.patience.quiet_s and self._leads():
                return
            if not why and still < self.patience.quiet_s:
                why = "something still writes"
        message = f"not settled within {self.patience.settles_s:g} s: {why}"
        raise NotSettledError(message)

    async def _missing(self, namespace: str, step: Step) -> str:
        """What is not yet as the step should leave it; empty when all is."""
        found = await self.api.get(f"{INFERENCE.format(namespace)}/{step.name}")
        if step.ends == "Gone":
            left = [agent.facts.name for agent in self.kubelet.agents(namespace)]
            return f"{left or 'the object'} left" if found is not None or left else ""
        if found is None:
            return "the Inference is not there"
        status = found.get("status", {})
        ready = next((each for each in status.get("conditions", ()) if each["type"] == "Ready"), {})
        said = "Ready" if ready.get("status") == "True" else ready.get("reason", "no status")
        if status.get("observedGeneration") != found["metadata"]["generation"] or said != step.ends:
            return f"Ready says {said}: {ready.get('message', '')}"
        names = [agent.facts.name for agent in self.kubelet.agents(namespace)]
        wanted = step.pods or {step.name: found["spec"]["replicas"]}
        pods = {name: sum(pod.startswith(f"inf-{name}-") for pod in names) for name in wanted}
        if pods != wanted:
            return f"pods are {pods} instead of {wanted}"
        return await self._undecided(namespace)

    async def _undecided(self, namespace: str) -> str:
        """What the pool's allocator has still to do; after moves it always says once more that all rules are kept now."""
        for newest in (await decisions_of(self.api, namespace))[-1:]:
            name = newest["metadata"]["name"]
            if newest["spec"].get("moves") or "appliedAt" not in newest.get("status", {}).get("outcome", {}):
                return f"{name} is not the last word"
            pool = await self.api.get(f"{POOLS}/{namespace}") or {}
            if pool.get("status", {}).get("lastDecision") != name:
                return f"the pool does not name {name}"
        return ""

    def _inference(self, namespace: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        model = {"name": NAME, "uri": f"file://{self.models}/{NAME}", **spec.get("model", {})}
        placed = {"placement": {"pool": namespace}} if self._pool is not None else {}
        return {
            "apiVersion": "tidegate.io/v1alpha1",
            "kind": "Inference",
            "metadata": {"name": name, "namespace": namespace, "annotations": {"team": "ads"}},
            "spec": {**spec, **placed, "model": model},
        }

    async def _make_pool(self, name: str, pool: Pool) -> None:
        body = {
            "apiVersion": "tidegate.io/v1alpha1",
            "kind": "ComputePool",
            "metadata": {"name": name},
            "spec": pool.spec,
        }
        await self.api.call("POST", POOLS, body)
        self.kubelet.drain_s = pool.drain_s

        async def counted() -> bool:
            status = (await self.api.get(f"{POOLS}/{name}") or {}).get("status", {})
            return bool(status.get("slices", {}).get("free") == pool.slices)

        await self.wait_for(counted, f"pool {name} has {pool.slices} free slices", 20)

    async def _make_namespace(self, namespace: str) -> None:
        await self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        theirs = {
            "metadata": {"name": "theirs", "labels": {"tidegate.io/inference": NAME}},
            "data": {"of": "somebody else"},
        }
        await self.api.call("POST", f"/api/v1/namespaces/{namespace}/configmaps", theirs)

    async def _clean_up(self, namespace: str) -> None:
        self.proxy.trace = Trace("")
        self.kubelet.drain_s = 0.0
        body = {"propagationPolicy": "Background"}
        path = INFERENCE.format(namespace)
        for each in await self.api.list_objects(path):
            await self.api.call("DELETE", f"{path}/{each['metadata']['name']}", body)

        async def gone() -> bool:
            return not self.kubelet.agents(namespace)

        with contextlib.suppress(NotSettledError):
            await self.wait_for(gone, "the pods are gone", 20)
        if self._pool is not None:
            # Its node is another pool's in the next run.
            await self.api.call("DELETE", f"{POOLS}/{namespace}", body)
            self._pool = None

    # The bystander: an Inference that nothing of all this concerns.

    async def _plant_bystander(self) -> None:
        await self._make_namespace(_BYSTANDER)
        self.proxy.trace = Trace(_BYSTANDER)
        spec = {"tier": "nearline", "replicas": 0, "model": {"version": "1"}}
        body = self._inference(_BYSTANDER, NAME, spec)
        await self.api.call("POST", INFERENCE.format(_BYSTANDER), body)
        await self._ended(_BYSTANDER, Step({}))
        self._bystander = await invariants.versions(self.api, _BYSTANDER)

    async def _disturbed(self) -> list[str]:
        now = await invariants.versions(self.api, _BYSTANDER)
        touched = sorted(
            key for key in now.keys() | self._bystander.keys() if now.get(key) != self._bystander.get(key)
        )
        self._bystander = now
        return [f"I9: {key} of another object was written" for key in touched]

    # The operator's life.

    def _kill(self) -> None:
        assert self._operator is not None
        self._operator.kill()
        self.restarts += 1
        self._restart = asyncio.create_task(self._restarted(self._operator))

    def _histories(self) -> Sequence[Sequence[int]]:
        return tuple(tuple(agent.history) for agent in self.kubelet.ever(self.proxy.trace.namespace))

    async def _restarted(self, killed: OperatorProcess) -> None:
        await killed.gone()
        await self.expire_lease()
        self._operator = await self._nursery.bear(self.proxy)
        await self.wait_for(self._leading, "the next operator leads", 90)
        self.proxy.trace.touched_at = time.monotonic()

    async def _replace_operator(self) -> None:
        self._kill()
        assert self._restart is not None
        await self._restart
        await self.wait_for(self._leading, "the other operator leads", 90)

    async def expire_lease(self) -> None:
        """As if the ten seconds had passed after which a dead leader's Lease is free: a run need not wait for them."""
        await self.api.call("PATCH", _LEASE, {"spec": {"holderIdentity": "", "leaseDurationSeconds": 1}})

    async def _leading(self) -> bool:
        return self._leads()

    @property
    def _restarting(self) -> bool:
        return self._restart is not None and not self._restart.done()

    def _leads(self) -> bool:
        return self._operator is not None and self._operator.running and self._operator.leads

    async def _end(self) -> None:
        if self._restart is not None:
            await asyncio.wait({self._restart})
        if self._operator is not None:
            self._operator.kill()
            await self._operator.gone()

    @staticmethod
    async def wait_for(holds: Callable[[], Awaitable[object]], what: str, timeout_s: float) -> None:
        """Returns when `holds` gives something true. Raises NotSettledError when it does not in time."""
        try:
            await waiting.eventually(holds, what, timeout_s=timeout_s)
        except waiting.NotInTimeError as error:
            raise NotSettledError(str(error)) from None

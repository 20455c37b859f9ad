"""A cluster in a nutshell, for whole rollouts in milliseconds: the planner is real, Kubernetes and the agents are a few rules each.

One tick is one second. In each, the Deployment controller, the scheduler and the kubelet move pods, every agent takes one step,
and the planner is asked once; what changed since the last tick is a line of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from builders.overlay import overlaid
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.planning.inference.deployments import DeploymentView, parse_deployment
from tidegate.planning.inference.node_resources import NodeResources
from tidegate.planning.inference.observed import InferenceObserved
from tidegate.planning.inference.planner import plan_inference
from tidegate.planning.plan import ReconcilePlan
from tidegate.planning.pods import PodView
from tidegate.resources.names import SOURCE_LABEL, TEMPLATE_ANNOTATION
from tidegate.resources.serving_pod import DESIRED_FILE
from tidegate.resources.settings import ServingSettings
from tidegate_dataplane.contract import AgentPhase, AgentReport, DesiredState, FailureReason, VersionFailure

START = datetime(2026, 1, 1, tzinfo=UTC)
SETTINGS = ServingSettings(dataplane_image="dataplane:1", triton_image="triton:1", models_host_path="/models")
DRAIN_TICKS = 3
SLICE = "tidegate.io/slice"


@dataclass
class SimulatedAgent:
    """An agent with its Triton: one tick to fetch, one to load; a version in memory serves at once."""

    desired: DesiredState
    phase: AgentPhase = AgentPhase.STARTING
    serving: int | None = None
    loaded: tuple[int, ...] = ()
    failure: VersionFailure | None = None

    def take(self, order: DesiredState) -> None:
        """A new order; what failed before is tried again."""
        if order.epoch >= self.desired.epoch:
            self.desired, self.failure = order, None

    def step(self, refusals: Mapping[int, str]) -> None:
        """One tick of work."""
        version = self.desired.version
        if self.failure is not None and self.failure.version == version:
            self.phase = AgentPhase.FAILED
        elif version in self.loaded:
            self.serving, self.phase = version, AgentPhase.READY
        elif self.phase is not AgentPhase.FETCHING:
            self.phase = AgentPhase.FETCHING
        elif version in refusals:
            self.failure = VersionFailure(
                version=version, reason=FailureReason.LOAD_FAILED, message=refusals[version]
            )
            self.phase = AgentPhase.FAILED
        else:
            self.loaded = (*self.loaded, version)[-self.desired.keep_versions :]
            self.serving, self.phase = version, AgentPhase.READY

    def report(self, pod: str) -> AgentReport:
        """What it says of itself."""
        return AgentReport(
            pod=pod,
            epoch=self.desired.epoch,
            generation=self.desired.generation,
            phase=self.phase,
            target=self.desired.version,
            serving=self.serving,
            loaded=tuple(sorted(self.loaded)),
            failure=self.failure,
        )


@dataclass
class SimulatedPod:
    """A pod of ours, from its creation to the end of its drain."""

    name: str
    template: str
    source: str
    agent: SimulatedAgent | None = None
    """None while no node takes it."""
    leaving: int | None = None
    """Ticks of draining that are left."""
    silent: bool = False
    """The controllers cannot reach its agent."""

    @property
    def ready(self) -> bool:
        """Whether its model answers."""
        return self.agent is not None and self.agent.serving is not None

    def view(self, why_nowhere: str) -> PodView:
        """As planners see it."""
        return PodView(
            key=ObjectKey("ads", self.name),
            uid=self.name,
            source=self.source,
            address=None if self.agent is None else "10.0.0.1",
            ready=self.ready,
            terminating=self.leaving is not None,
            template=self.template,
            unschedulable=why_nowhere if self.agent is None else "",
            requests={SLICE: Decimal(1)},
        )

    def __str__(self) -> str:
        if self.leaving is not None:
            return f"{self.name} drains"
        if self.agent is None:
            return f"{self.name} has no node"
        at_work = self.agent.phase in (AgentPhase.STARTING, AgentPhase.FETCHING, AgentPhase.LOADING)
        serves = f"serves {self.agent.serving}" if self.agent.serving else "is not ready"
        return f"{self.name} {serves}{f', works on {self.agent.desired.version}' if at_work else ''}"


@dataclass
class RolloutWorld:
    """One Inference in a cluster with room for `capacity` pods; `log` is what happened."""

    body: dict[str, Any]
    capacity: int = 100
    refusals: dict[int, str] = field(default_factory=dict)
    """Versions that do not load, with Triton's words."""
    pods: list[SimulatedPod] = field(default_factory=list)
    deployment: dict[str, Any] | None = None
    config_maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    epoch: int = 1
    tick: int = 0
    log: list[str] = field(default_factory=list)
    _said: dict[str, str] = field(default_factory=dict)
    _applied: dict[str, object] = field(default_factory=dict)
    _made: int = 0
    _progress: tuple[object, ...] = ()
    _progressed: int = 0

    def edit(self, what: str, **spec: Any) -> None:
        """The user changes the spec; `what` is the log's word for it."""
        self.body["spec"] = overlaid(self.body["spec"], spec)
        self.body["metadata"]["generation"] += 1
        self._line("user", what)

    def happens(self, what: str) -> None:
        """Something that the caller did to the world."""
        self._line("world", what)

    def run_until(self, condition: Callable[[RolloutWorld], bool], limit: int = 1_000) -> None:
        """Ticks until `condition` holds; fails after `limit` ticks."""
        for _ in range(limit):
            if condition(self):
                return
            self.step()
        raise AssertionError("it never came to that:\n" + "\n".join(self.log[-40:]))

    def settle(self, quiet: int = 12, limit: int = 1_000) -> None:
        """Ticks until nothing has changed for `quiet` ticks."""
        lines, calm = len(self.log), 0
        for _ in range(limit):
            self.step()
            calm = calm + 1 if len(self.log) == lines else 0
            lines = len(self.log)
            if calm >= quiet:
                return
        raise AssertionError("it never settles:\n" + "\n".join(self.log[-40:]))

    def step(self) -> None:
        """One second passes."""
        self.tick += 1
        self._move_pods()
        for pod in self.pods:
            if pod.agent is not None and pod.leaving is None:
                pod.agent.step(self.refusals)
        self._say("pods", "; ".join(str(pod) for pod in self.pods) or "none")
        self.reconcile()

    def reconcile(self) -> None:
        """Observe, plan, apply: as the reconciler does."""
        plan = plan_inference(self._observed(), SETTINGS)
        self._apply(plan)
        for order in plan.orders:
            pod = next(pod for pod in self.pods if pod.name == order.pod.uid)
            self._line("order", f"{pod.name}: version {order.desired_state.version}")
            if pod.agent is not None:
                pod.agent.take(order.desired_state)
        for event in plan.events:
            self._line("event", f"{event.type} {event.reason}: {event.message}")
        self.body["status"] = plan.status
        self._say("status", _standing(plan.status))

    @property
    def ready(self) -> str:
        """Status and reason of Ready, as the object has it now."""
        conditions: Any = self.body.get("status", {}).get("conditions", ())
        return next((f"{c['status']} {c['reason']}" for c in conditions if c["type"] == "Ready"), "")

    def _observed(self) -> InferenceObserved:
        nowhere = f"0/1 nodes are available: 1 Insufficient {SLICE}."
        taken = sum(pod.agent is not None for pod in self.pods)
        free = {SLICE: Decimal(self.capacity - taken)}
        return InferenceObserved(
            inference=Inference.parse(self.body),
            now=START + timedelta(seconds=self.tick),
            epoch=self.epoch,
            pods=[pod.view(nowhere) for pod in self.pods],
            reports={
                pod.name: pod.agent.report(pod.name)
                for pod in self.pods
                if pod.agent is not None and not pod.silent
            },
            config_maps=list(self.config_maps.values()),
            deployments=[view for view in [self._deployment_view()] if view is not None],
            freest_nodes=[NodeResources("node-0", {SLICE: Decimal(self.capacity)}, free)],
        )

    def _deployment_view(self) -> DeploymentView | None:
        """What the Deployment controller says of its rollout."""
        if self.deployment is None:
            return None
        spec = self.deployment["spec"]
        digest = spec["template"]["metadata"]["annotations"][TEMPLATE_ANNOTATION]
        alive = [pod for pod in self.pods if pod.leaving is None]
        new = [pod for pod in alive if pod.template == digest]
        ready = sum(pod.ready for pod in alive)
        ended = len(new) == len(alive) == spec["replicas"] == ready
        state = (digest, len(new), len(alive), ready)
        if state != self._progress:
            self._progress, self._progressed = state, self.tick
        overdue = self.tick - self._progressed >= spec["progressDeadlineSeconds"]
        stuck = "ProgressDeadlineExceeded" if overdue else "ReplicaSetUpdated"
        status = {
            "conditions": [{"type": "Progressing", "reason": "NewReplicaSetAvailable" if ended else stuck}],
            "updatedReplicas": len(new),
            "replicas": len(alive),
            "readyReplicas": ready,
        }
        return parse_deployment({**self.deployment, "status": status})

    def _apply(self, plan: ReconcilePlan) -> None:
        changed: list[str] = []
        for manifest in plan.apply:
            body: Any = manifest
            name = f"{body['kind']} {body['metadata']['name']}"
            if self._applied.get(name) == body:
                continue
            self._applied[name] = body
            changed.append(body["kind"])
            if body["kind"] == "ConfigMap":
                metadata = {**body["metadata"], "uid": body["metadata"]["name"]}
                self.config_maps[metadata["name"]] = {**body, "metadata": metadata}
            if body["kind"] == "Deployment":
                self.deployment = body
        if changed:
            self._line("apply", ", ".join(changed))
        for deletion in plan.delete:
            self._line("delete", f"{deletion.kind} {deletion.key.name}")
            self.config_maps.pop(deletion.key.name, None)
            self._applied.pop(f"{deletion.kind} {deletion.key.name}", None)

    def _move_pods(self) -> None:
        for pod in [pod for pod in self.pods if pod.leaving is not None]:
            pod.leaving = (pod.leaving or 0) - 1
            if pod.leaving <= 0:
                self.pods.remove(pod)
        if self.deployment is not None:
            self._roll(self.deployment["spec"])
        for pod in self.pods:
            if pod.agent is None and sum(other.agent is not None for other in self.pods) < self.capacity:
                pod.agent = SimulatedAgent(self._start_of(pod))

    def _roll(self, spec: Mapping[str, Any]) -> None:
        """The Deployment controller, as far as its strategy goes."""
        wanted, template = spec["replicas"], spec["template"]["metadata"]
        rolling = spec["strategy"]["rollingUpdate"]
        digest = template["annotations"][TEMPLATE_ANNOTATION]
        alive = [pod for pod in self.pods if pod.leaving is None]
        new = [pod for pod in alive if pod.template == digest]
        old = [pod for pod in alive if pod.template != digest]
        spare = sum(pod.ready for pod in alive) - (wanted - rolling["maxUnavailable"])
        for pod in [*_unready_first(old), *_unready_first(new)[: max(0, len(new) - wanted)]]:
            if pod.ready and spare <= 0:
                continue
            spare -= pod.ready
            self._end(pod)
        room = wanted + (rolling["maxSurge"] if old else 0) - sum(pod.leaving is None for pod in self.pods)
        for _ in range(min(room, wanted - len(new))):
            self._made += 1
            self.pods.append(SimulatedPod(f"p{self._made}", digest, template["labels"][SOURCE_LABEL]))

    def _end(self, pod: SimulatedPod) -> None:
        if pod.agent is None:
            self.pods.remove(pod)
        else:
            pod.leaving = DRAIN_TICKS

    def _start_of(self, pod: SimulatedPod) -> DesiredState:
        config_map = next(
            body
            for body in self.config_maps.values()
            if body["metadata"]["labels"][SOURCE_LABEL] == pod.source
        )
        return DesiredState.model_validate_json(config_map["data"][DESIRED_FILE])

    def _say(self, who: str, what: str) -> None:
        if self._said.get(who) != what:
            self._said[who] = what
            self._line(who, what)

    def _line(self, who: str, what: str) -> None:
        self.log.append(f"{self.tick:4d} s  {who:<6}  {what}")


def _unready_first(pods: list[SimulatedPod]) -> list[SimulatedPod]:
    return sorted(pods, key=lambda pod: pod.ready)


def _standing(status: Mapping[str, Any]) -> str:
    return "; ".join(_sayings(status))


def _sayings(status: Mapping[str, Any]) -> Iterator[str]:
    conditions = {item["type"]: item for item in status["conditions"]}
    versions = status["versions"]
    yield f"serving {versions.get('serving') or '-'}, loaded {' '.join(versions.get('loaded', ())) or '-'}"
    yield f"{status['readyReplicas']} of {status['replicas']} pods ready"
    if conditions["Stalled"]["status"] == "True":
        yield "stalled"
    ready = conditions["Ready"]
    yield f"Ready={ready['status']} {ready['reason']}: {ready['message']}"

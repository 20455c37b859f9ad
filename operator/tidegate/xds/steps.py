"""One proxy's aggregated discovery stream as a pure state machine, events in, responses out.

The steps of a change are make before break, gated on what the proxy has accepted (xds.gate):

1. clusters, old and new together, and their endpoints; endpoints that have become none are held back;
2. once the proxy has accepted both: listeners and routes;
3. once it has accepted those: clusters without the old ones, and the endpoints that were held back.

The step is not remembered but read off from what the proxy has acknowledged, at every event anew.
So a newer snapshot in the middle simply changes where all of this leads, and a change that needs no step skips it.
Secrets of the TLS port go out as they are asked for, and no other type waits for them.
A NACK leaves the refused resource as the proxy has it, and the routes that lead to it (xds.standstill), until the next snapshot differs there; all else goes on.

Once a proxy is known to run a snapshot in full, only what differs from that is looked at: the work of a change is that of its size, whatever the fleet's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, Protocol, TypeVar

from tidegate.routing.hosts import HostKey
from tidegate.routing.planner import HostState
from tidegate.routing.snapshot import Snapshot, TypeUrl, version_of
from tidegate.xds.gate import GATE_TIMEOUT_S, Gate
from tidegate.xds.holdings import BACKENDS, ORDER, ROUTING, Holdings
from tidegate.xds.inspection import ProxyKind, SyncState
from tidegate.xds.messages import DiscoveryResponse
from tidegate.xds.standstill import NOTHING, Standstill, refused_hosts, standstill
from tidegate.xds.subscription import Subscription
from tidegate.xds.suspects import Change
from tidegate.xds.targets import Step, Target, Targets


class Request(Protocol):
    """What the requests of both protocols have; the last two are empty in all but the first of a stream."""

    @property
    def type_url(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def user_agent(self) -> str: ...


R = TypeVar("R", bound=Request)


@dataclass(frozen=True, slots=True)
class Running:
    """What a proxy runs: `snapshot`, but of `others` what is named there (None: nothing), since it refused what the snapshot has."""

    snapshot: Snapshot
    others: Mapping[HostKey, HostState | None] = field(default_factory=dict[HostKey, HostState | None])

    def host(self, key: HostKey) -> HostState | None:
        """What it runs of one object; None for nothing."""
        return self.others[key] if key in self.others else self.snapshot.hosts.get(key)

    @property
    def hosts(self) -> Mapping[HostKey, HostState]:
        """What it runs of every object."""
        if not self.others:
            return self.snapshot.hosts
        return {key: state for key, state in {**self.snapshot.hosts, **self.others}.items() if state}


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a stream is.

    `acked` is the last snapshot that the proxy accepted in full, all steps included; `running` the last that it accepted but for what it refused.
    `refused` are the objects of which it refused what the present goal has, and `nack` the reason of its last refusal, both in its words.
    `warm`: it came with resources that an earlier stream gave it.
    """

    node: str
    acked: Snapshot | None
    nack: str | None
    warm: bool
    running: Running | None = None
    refused: Mapping[HostKey, str] = field(default_factory=dict[HostKey, str])


@dataclass(slots=True)
class Counters:
    """What happened on the stream so far."""

    pushes: dict[TypeUrl, int] = field(default_factory=dict[TypeUrl, int])
    acks: dict[TypeUrl, int] = field(default_factory=dict[TypeUrl, int])
    nacks: dict[TypeUrl, int] = field(default_factory=dict[TypeUrl, int])
    gate_misses: int = 0


@dataclass(frozen=True, slots=True)
class _Next:
    """What a response changes, and the version that it bears."""

    change: Change
    version: str


class DiscoveryStream(ABC, Generic[R]):
    """What the streams of both kinds of proxies have in common; each adds how its requests (R) are read.

    Every method takes the time in seconds of any steady clock, and returns what to send, in order.
    """

    KIND: ClassVar[ProxyKind]

    def __init__(self, snapshot: Snapshot | None, *, gate_timeout_s: float = GATE_TIMEOUT_S) -> None:
        self.counters = Counters()
        self._node = ""
        self._goal = snapshot
        self._holdings = Holdings()
        self._gate = Gate(self._holdings, gate_timeout_s)
        self._targets = Targets(self._holdings, self._gate)
        self._acked: Snapshot | None = None
        self._running: Running | None = None
        self._still = NOTHING
        self._refused: Mapping[HostKey, str] = {}
        self._nonces = 0

    @property
    def progress(self) -> StreamProgress:
        """How far the proxy is, and why it refused what it refused."""
        return StreamProgress(
            self._node, self._acked, self._holdings.error, self._gate.warm, self._running, self._refused
        )

    def states(self) -> Mapping[TypeUrl, SyncState]:
        """How far the proxy is with each type that it asked for."""
        return {kind: self._state(one) for kind, one in self._holdings.subscriptions.items()}

    def _state(self, subscription: Subscription) -> SyncState:
        if subscription.error is not None:
            return SyncState.NACKED
        if self._goal is None:
            return SyncState.NOT_SENT
        complete = self._holdings.has_all(subscription.type_url, self._goal)
        return SyncState.SYNCED if complete else SyncState.STALE

    @property
    def wake_at(self) -> float | None:
        """When `on_time` has something to do, if nothing else happens before."""
        return self._gate.opens_at

    def on_snapshot(self, snapshot: Snapshot, now: float) -> list[DiscoveryResponse]:
        """A newer state to lead the proxy to; what was on the way to the older one stays valid or is replaced."""
        self._targets.remember(self._goal, snapshot)
        self._goal = snapshot
        return self._advance(now)

    def on_request(self, request: R, now: float) -> list[DiscoveryResponse]:
        """The proxy subscribes, accepts or refuses. Types that are not served are left unanswered."""
        self._node = self._node or request.node
        try:
            type_url = TypeUrl(request.type_url)
        except ValueError:
            return []
        self._take(type_url, request)
        return self._advance(now)

    @abstractmethod
    def _take(self, type_url: TypeUrl, request: R) -> None:
        """What a request says of the subscription to a type, and of the response that it answers."""

    def on_time(self, now: float) -> list[DiscoveryResponse]:
        """Time has passed."""
        return self._advance(now)

    def _answered(self, subscription: Subscription, error: str | None) -> None:
        """The proxy's word on what is in flight; `error` is the reason of a NACK."""
        if subscription.in_flight is None:
            return
        if error is None:
            _count(self.counters.acks, subscription.type_url)
            subscription.accept()
        else:
            _count(self.counters.nacks, subscription.type_url)
            subscription.refuse(error)

    def _advance(self, now: float) -> list[DiscoveryResponse]:
        """Sends all that may go out now. One response of a type is under way at a time, so a slow proxy meets only the newest."""
        goal = self._goal
        if goal is None:
            return []
        still = standstill(self._holdings, goal)
        settled = self._gate.routes_settled(goal, still)
        step = Step(goal, still, breaking=settled)
        routing = dict(self._next_routes(step))
        gate_open = self._gate.lets_routes_out(goal, now, pending=bool(routing))
        if misses := self._gate.take_misses():
            self.counters.gate_misses += misses
            step = replace(step, unsent=self._holdings.unsent_clusters(goal))
            routing = dict(self._next_routes(step))
        responses: list[DiscoveryResponse] = []
        for type_url in ORDER:
            subscription = self._holdings.get(type_url)
            if subscription is None or subscription.in_flight is not None:
                continue
            if type_url in ROUTING and not gate_open:
                continue
            following = routing.get(type_url) if type_url in ROUTING else self._next(subscription, step)
            if following is not None:
                responses.append(self._send(subscription, following))
        refused = refused_hosts(self._holdings, goal, still)
        if refused != self._refused:
            self._refused = refused
        if settled and all(
            self._gate.settled(type_url, goal, still) for type_url in (*BACKENDS, TypeUrl.SECRET)
        ):
            self._runs(goal, still)
        return responses

    def _next_routes(self, step: Step) -> Iterator[tuple[TypeUrl, _Next]]:
        """The listeners and routes that wait to be sent."""
        for type_url in ROUTING:
            subscription = self._holdings.get(type_url)
            if subscription is not None and subscription.in_flight is None:
                following = self._next(subscription, step)
                if following is not None:
                    yield type_url, following

    def _next(self, subscription: Subscription, step: Step) -> _Next | None:
        """What is to be sent next of a type; None when there is nothing to say."""
        target = self._targets.of(subscription, step)
        change = subscription.to_send(target)
        return None if change is None else _Next(change, _version(subscription, step.goal, target, change))

    def _send(self, subscription: Subscription, following: _Next) -> DiscoveryResponse:
        type_url, change = subscription.type_url, following.change
        self._nonces += 1
        _count(self.counters.pushes, type_url)
        content = sorted(subscription.content(change).items())
        gone = subscription.send(change, str(self._nonces))
        endpoints = self._holdings.get(TypeUrl.ENDPOINT)
        if type_url is TypeUrl.CLUSTER and endpoints is not None:
            endpoints.forget(gone)
            # A changed cluster waits for its endpoints, even for those that the proxy had before.
            endpoints.doubt(change.keys() - gone)
        return DiscoveryResponse(
            type_url,
            following.version,
            subscription.nonce,
            tuple(resource for _, resource in content if resource is not None),
            tuple(name for name, resource in content if resource is None),
        )

    def _runs(self, goal: Snapshot, still: Standstill) -> None:
        """The proxy runs the goal and nothing else, but for what it refused."""
        before = self._running
        if still is NOTHING:
            self._acked = goal
        else:
            self._look_only_at_what_differs(goal)
        others = {host: None if before is None else before.host(host) for host in self._refused}
        if before is None or before.snapshot is not goal or before.others != others:
            self._running = Running(goal, others)

    def _look_only_at_what_differs(self, goal: Snapshot) -> None:
        for type_url, subscription in self._holdings.subscriptions.items():
            differing = self._holdings.differing(type_url, goal)
            if differing is not None:
                subscription.completed(goal.resources[type_url], but=differing)


def _count(counter: dict[TypeUrl, int], type_url: TypeUrl) -> None:
    counter[type_url] = counter.get(type_url, 0) + 1


def _version(subscription: Subscription, goal: Snapshot, target: Target, change: Change) -> str:
    """The goal's own version of the type, or with a suffix while something else is kept or held back, or only a part is sent."""
    resources, version = goal.resources[subscription.type_url], goal.versions[subscription.type_url]
    there = {name: resource for name, resource in target.items() if resource is not None}
    extra = {name: resource for name, resource in there.items() if resources.get(name) != resource}
    if any(name not in change and not subscription.has(resource) for name, resource in there.items()):
        extra |= {name: resource for name, resource in change.items() if resource is not None}
    return f"{version}+{version_of(extra)}" if extra else version

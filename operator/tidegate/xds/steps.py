"""One proxy's aggregated discovery stream as a pure state machine, whichever dialect it speaks: events in, responses out.

Make before break, gated on what the proxy has accepted:

1. clusters, old and new together, and their endpoints; endpoints that have become none are held back;
2. once the proxy has accepted both: listeners and routes;
3. once it has accepted those: clusters without the old ones, and the endpoints that were held back.

The step is not remembered but read off from what the proxy has acknowledged, at every event anew.
So a newer snapshot in the middle simply changes where all of this leads, and a change that needs no step skips it.
A NACK stops what depends on the refused resources and leaves the proxy on what it last accepted, until the next snapshot differs.
In the delta dialect that is the refused resource and the routes that lead to it; in the other it is all of the type and all routes.
A proxy that says nothing holds up step 2 for `gate_timeout_s` at most; step 3 waits for as long as it takes, since breaking needs the proof.

Once a proxy is known to run a snapshot in full, only what differs from that is looked at: the work of a change is that of its size, whatever the fleet's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from tidegate.routing.snapshot import Resource, Resources, Snapshot, TypeUrl, version_of
from tidegate.xds.inspection import SyncState
from tidegate.xds.leads import leads_to
from tidegate.xds.messages import DiscoveryResponse
from tidegate.xds.subscription import WHOLE, Change, Subscription, Target

GATE_TIMEOUT_S: Final = 10.0

_ORDER: Final = (TypeUrl.CLUSTER, TypeUrl.ENDPOINT, TypeUrl.LISTENER, TypeUrl.SCOPE)
# What every proxy asks for of its own accord; the rest once it has something that needs it.
_FIRST: Final = (TypeUrl.CLUSTER, TypeUrl.LISTENER)
_ROUTING: Final = (TypeUrl.LISTENER, TypeUrl.SCOPE)

# Whoever asks for every cluster (listener) is to have the endpoints (routes) of every one.
_FOLLOWS: Final = {TypeUrl.ENDPOINT: TypeUrl.CLUSTER, TypeUrl.SCOPE: TypeUrl.LISTENER}


class Request(Protocol):
    """What requests of both dialects have; the last two are empty in all but the first of a stream."""

    @property
    def type_url(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def user_agent(self) -> str: ...


R = TypeVar("R", bound=Request)


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a stream is: `acked` is the last snapshot that the proxy accepted in full, all steps included.

    `warm`: it came with resources that an earlier stream gave it.
    """

    node: str
    acked: Snapshot | None
    nack: str | None
    warm: bool


@dataclass(slots=True)
class Counters:
    """What happened on the stream so far."""

    pushes: dict[TypeUrl, int] = field(default_factory=dict[TypeUrl, int])
    acks: dict[TypeUrl, int] = field(default_factory=dict[TypeUrl, int])
    nacks: dict[TypeUrl, int] = field(default_factory=dict[TypeUrl, int])
    gate_misses: int = 0


class DiscoveryStream(ABC, Generic[R]):
    """What both dialects have in common; each adds how its requests (R) are read.

    `DIALECT` is its name, for people.
    Every method takes the time in seconds of any steady clock, and returns what to send, in order.
    `placeholder` makes a stand-in for a cluster that a reconnecting proxy has and this process never knew.
    """

    DIALECT: ClassVar[str]

    def __init__(
        self,
        snapshot: Snapshot | None,
        *,
        gate_timeout_s: float = GATE_TIMEOUT_S,
        placeholder: Callable[[str], Resource | None] | None = None,
    ) -> None:
        self.counters = Counters()
        self._node = ""
        self._goal = snapshot
        self._gate_timeout_s = gate_timeout_s
        self._gate_closed_since: float | None = None
        self.placeholder = placeholder
        self._warm = False
        self._repeats_until: float | None = None
        self._subscriptions: dict[TypeUrl, Subscription] = {}
        self._acked: Snapshot | None = None
        self._left_endpoints: dict[str, Resource] = {}
        self._nonces = 0

    @property
    def progress(self) -> StreamProgress:
        """How far the proxy is, and why it refused what it refused."""
        errors = (subscription.error for subscription in self._subscriptions.values())
        nack = next((error for error in errors if error is not None), None)
        return StreamProgress(self._node, self._acked, nack, self._warm)

    def states(self) -> Mapping[TypeUrl, SyncState]:
        """How far the proxy is with each type that it asked for."""
        return {type_url: self._state(subscription) for type_url, subscription in self._subscriptions.items()}

    def _state(self, subscription: Subscription) -> SyncState:
        if subscription.error is not None:
            return SyncState.NACKED
        if self._goal is None:
            return SyncState.NOT_SENT
        complete = self._has_all(subscription.type_url, self._goal)
        return SyncState.SYNCED if complete else SyncState.STALE

    @property
    def wake_at(self) -> float | None:
        """When `on_time` has something to do, if nothing else happens before."""
        times: list[float] = []
        if self._gate_closed_since is not None:
            times.append(self._gate_closed_since + self._gate_timeout_s)
        if self._repeats_until is not None:
            times.append(self._repeats_until)
        return min(times, default=None)

    def on_snapshot(self, snapshot: Snapshot, now: float) -> list[DiscoveryResponse]:
        """A newer state to lead the proxy to; what was on the way to the older one stays valid or is replaced."""
        self._remember_endpoints(snapshot)
        self._goal = snapshot
        return self._advance(now)

    def _remember_endpoints(self, newer: Snapshot) -> None:
        """Keeps the endpoints of clusters that the proxy was sent and that `newer` no longer has."""
        clusters = self._subscriptions.get(TypeUrl.CLUSTER)
        if self._goal is None or clusters is None:
            return
        endpoints, wanted = self._goal.resources[TypeUrl.ENDPOINT], newer.resources[TypeUrl.CLUSTER]
        gone = [
            name
            for name in {*self._left_endpoints, *clusters.candidates(wanted)}
            if name in clusters.sent and name not in wanted
        ]
        known = {name: endpoints.get(name) or self._left_endpoints.get(name) for name in gone}
        self._left_endpoints = {name: one for name, one in known.items() if one is not None}

    def on_request(self, request: R, now: float) -> list[DiscoveryResponse]:
        """The proxy subscribes, accepts or refuses. Types that are not served are left unanswered."""
        self._node = self._node or request.node
        try:
            type_url = TypeUrl(request.type_url)
        except ValueError:
            return []
        self._take(type_url, request, now)
        return self._advance(now)

    @abstractmethod
    def _take(self, type_url: TypeUrl, request: R, now: float) -> None:
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
        if self._repeats_until is not None and (
            TypeUrl.ENDPOINT in self._subscriptions or now >= self._repeats_until
        ):
            self._repeats_until = None
        if goal is None:
            return []
        settled = self._routing_settled(goal)
        gate_open = self._gate_open(goal, now)
        backends_complete = self._backends_complete(goal)
        responses: list[DiscoveryResponse] = []
        for type_url in _ORDER:
            subscription = self._subscriptions.get(type_url)
            if subscription is None or not self._may_send(subscription, gate_open=gate_open):
                continue
            if type_url not in _ROUTING and backends_complete and (settled or not self._warm):
                continue
            target = self._target(subscription, goal, breaking=settled)
            change = subscription.to_send(target)
            if change is not None:
                responses.append(self._send(subscription, change, _version(goal, type_url, target)))
        if settled and self._complete(goal):
            self._acked = goal
        return responses

    def _may_send(self, subscription: Subscription, *, gate_open: bool) -> bool:
        if subscription.in_flight is not None:
            return False
        if subscription.type_url in _ROUTING:
            return gate_open
        # The endpoints that a returning proxy asks for tell which clusters it has: wait for them before deleting any.
        return subscription.type_url is not TypeUrl.CLUSTER or self._repeats_until is None

    def _send(self, subscription: Subscription, change: Change, version: str) -> DiscoveryResponse:
        type_url = subscription.type_url
        self._nonces += 1
        _count(self.counters.pushes, type_url)
        gone = subscription.send(change, str(self._nonces))
        endpoints = self._subscriptions.get(TypeUrl.ENDPOINT)
        if type_url is TypeUrl.CLUSTER and endpoints is not None and gone:
            endpoints.forget(gone)
        return DiscoveryResponse(
            type_url,
            version,
            subscription.nonce,
            tuple(resource for _, resource in sorted(change.items()) if resource is not None),
            tuple(name for name, resource in sorted(change.items()) if resource is None),
        )

    def _target(self, subscription: Subscription, goal: Snapshot, *, breaking: bool) -> Target:
        """What the proxy should have of this type at the present step."""
        resources = goal.resources[subscription.type_url]
        changes = {
            name: self._wanted(subscription, goal, name, breaking=breaking)
            if subscription.wants(name)
            else None
            for name in self._candidates(subscription, resources)
        }
        if subscription.type_url is TypeUrl.SCOPE and (missing := self._missing_backends()):
            for name, scope in changes.items():
                if scope is not None and leads_to(scope, missing):
                    changes[name] = subscription.held(name)

        def whole() -> dict[str, Resource]:
            others = {
                name: resource
                for name, resource in resources.items()
                if name not in changes and subscription.wants(name)
            }
            return others | {name: resource for name, resource in changes.items() if resource is not None}

        return Target(changes, whole)

    def _missing_backends(self) -> frozenset[str]:
        """The clusters that the proxy does not have because it refused them, or their endpoints."""
        backends = (self._subscriptions.get(type_url) for type_url in (TypeUrl.CLUSTER, TypeUrl.ENDPOINT))
        return frozenset(name for one in backends if one is not None for name in one.missing())

    def _candidates(self, subscription: Subscription, resources: Resources) -> Iterator[str]:
        """The names under which the proxy may have something else than it should."""
        seen = subscription.candidates(resources)
        yield from seen
        others: Iterable[str] = ()
        endpoints = self._subscriptions.get(TypeUrl.ENDPOINT)
        if subscription.type_url is TypeUrl.ENDPOINT:
            others = self._left_endpoints
        elif subscription.type_url is TypeUrl.CLUSTER and self._warm and self.placeholder and endpoints:
            others = (name for name in endpoints.names or () if name not in resources)
        yield from (name for name in others if name not in seen)

    def _wanted(
        self, subscription: Subscription, goal: Snapshot, name: str, *, breaking: bool
    ) -> Resource | None:
        if subscription.type_url is TypeUrl.ENDPOINT:
            return self._wanted_endpoints(subscription, goal, name, breaking=breaking)
        resource = goal.resources[subscription.type_url].get(name)
        named = subscription.names is not None
        if resource is None and subscription.type_url is TypeUrl.CLUSTER and (named or not breaking):
            # A route of the proxy's may still lead there. Who asks by name (a gRPC client) accepts routes before it
            # uses them, and says itself when it is done with a cluster.
            return subscription.held(name) or self._stand_in(subscription, name)
        return resource

    def _stand_in(self, clusters: Subscription, name: str) -> Resource | None:
        """For a cluster from an earlier stream: the proxy still asks for its endpoints, so it is there."""
        endpoints = self._subscriptions.get(TypeUrl.ENDPOINT)
        known = endpoints is None or name not in (endpoints.names or ()) or name in clusters.sent
        return None if known or not self._warm or self.placeholder is None else self.placeholder(name)

    def _wanted_endpoints(
        self, subscription: Subscription, goal: Snapshot, name: str, *, breaking: bool
    ) -> Resource | None:
        clusters = self._subscriptions.get(TypeUrl.CLUSTER)
        resource = goal.resources[TypeUrl.ENDPOINT].get(name)
        if resource is None:
            # A cluster that was overtaken before its endpoints went out gets them all the same: Envoy acknowledges no
            # clusters while one of them waits for its endpoints, and would wait 15 s for these.
            left = clusters is not None and name in clusters.sent
            return self._left_endpoints.get(name) if left else None
        cluster = goal.resources[TypeUrl.CLUSTER].get(name)
        # The endpoints of a changed cluster go after it, never before: it would wait for them in vain.
        early = clusters is not None and cluster is not None and not clusters.was_sent(cluster)
        if not (early or (not breaking and self._held_back(subscription, resource))):
            return resource
        return subscription.held(name)

    def _held_back(self, endpoints: Subscription, resource: Resource) -> bool:
        """Whether these are no endpoints where the proxy has some, or may have some from an earlier stream."""
        held = endpoints.held(resource.name)
        return resource.vacant and (self._warm if held is None else not held.vacant)

    def _gate_open(self, goal: Snapshot, now: float) -> bool:
        """Whether listeners and routes may go out: the proxy has what they lead to, or has been silent for too long."""
        if self._clusters_ready(goal) or not self._routing_pending(goal):
            self._gate_closed_since = None
            return True
        if any(
            subscription.is_stuck
            for type_url, subscription in self._subscriptions.items()
            if type_url not in _ROUTING
        ):
            self._gate_closed_since = None
            return False
        if self._gate_closed_since is None:
            self._gate_closed_since = now
        if now - self._gate_closed_since < self._gate_timeout_s:
            return False
        self._gate_closed_since = None
        self.counters.gate_misses += 1
        return True

    def _clusters_ready(self, goal: Snapshot) -> bool:
        """Whether the proxy accepted every cluster of the goal that it is to have, and the endpoints of each."""
        if self._backends_complete(goal):
            return True
        clusters = self._subscriptions.get(TypeUrl.CLUSTER)
        if clusters is not None and clusters.accepted is None:
            return False
        # Nor must any route wait for what was refused: those that lead there are held back by themselves.
        if any(
            not (clusters and (clusters.has(cluster) or clusters.gave_up(cluster)))
            for cluster in self._due(TypeUrl.CLUSTER, goal)
        ):
            return False
        never = frozenset(clusters.missing()) if clusters else frozenset[str]()
        endpoints = self._subscriptions.get(TypeUrl.ENDPOINT)
        # The routes must not wait for endpoints that wait for the routes.
        return all(
            due.name in never
            or (
                endpoints is not None
                and (endpoints.has(due) or endpoints.gave_up(due) or self._held_back(endpoints, due))
            )
            for due in self._due(TypeUrl.ENDPOINT, goal)
        )

    def _routing_pending(self, goal: Snapshot) -> bool:
        return any(
            subscription.to_send(self._target(subscription, goal, breaking=False)) is not None
            for type_url, subscription in self._subscriptions.items()
            if type_url in _ROUTING and subscription.in_flight is None
        )

    def _routing_settled(self, goal: Snapshot) -> bool:
        """Whether the proxy runs the goal's listeners and routes, so that nothing leads to what is not in the goal."""
        if not any(type_url in self._subscriptions for type_url in _ROUTING):
            # Who has never asked for routes has none; who comes with resources will ask in a moment.
            return not self._warm
        return all(self._has_all(type_url, goal) for type_url in _ROUTING)

    def _backends_complete(self, goal: Snapshot) -> bool:
        """Whether it is known already that the proxy runs the goal's clusters and endpoints: then a change is of routes alone."""
        return all(
            (subscription := self._subscriptions.get(type_url)) is not None
            and subscription.is_complete(goal.resources[type_url])
            for type_url in (TypeUrl.CLUSTER, TypeUrl.ENDPOINT)
        )

    def _complete(self, goal: Snapshot) -> bool:
        """Whether the proxy runs the goal and nothing else."""
        return all(self._has_all(type_url, goal) for type_url in _ORDER)

    def _has_all(self, type_url: TypeUrl, goal: Snapshot) -> bool:
        subscription, resources = self._subscriptions.get(type_url), goal.resources[type_url]
        if subscription is None:
            return type_url not in _FIRST and not any(True for _ in self._due(type_url, goal))
        if subscription.is_complete(resources):
            return True
        if subscription.in_flight is not None or (type_url in WHOLE and subscription.accepted is None):
            return False
        if type_url in WHOLE and any(
            name not in resources and not subscription.lacks(name)
            for name in subscription.candidates(resources)
        ):
            return False
        if not all(subscription.has(resource) for resource in self._due(type_url, goal)):
            return False
        subscription.completed(resources)
        return True

    def _due(self, type_url: TypeUrl, goal: Snapshot) -> Iterator[Resource]:
        """The resources of the goal that the proxy is to have in the end, and of which it is not known that it has them."""
        deciding = self._subscriptions.get(_FOLLOWS.get(type_url, type_url))
        own = self._subscriptions.get(type_url)
        everything = deciding is not None and deciding.names is None
        if own is None and not everything:
            return
        resources = goal.resources[type_url]
        for name in resources if own is None else own.candidates(resources):
            resource = resources.get(name)
            if resource is not None and (everything or (own is not None and own.wants(name))):
                yield resource


def _count(counter: dict[TypeUrl, int], type_url: TypeUrl) -> None:
    counter[type_url] = counter.get(type_url, 0) + 1


def _version(goal: Snapshot, type_url: TypeUrl, target: Target) -> str:
    """The goal's own version of the type, or with a suffix while something else is kept or held back."""
    resources = goal.resources[type_url]
    extra = {
        name: resource
        for name, resource in target.changes.items()
        if resource is not None and resources.get(name) != resource
    }
    return f"{goal.versions[type_url]}+{version_of(extra)}" if extra else goal.versions[type_url]

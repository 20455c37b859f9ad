"""One proxy's aggregated discovery stream (state of the world) as a pure state machine: events in, responses out.

Make before break, gated on what the proxy has accepted:

1. clusters, old and new together, and their endpoints; endpoints that have become none are held back;
2. once the proxy has accepted both: listeners and routes;
3. once it has accepted those: clusters without the old ones, and the endpoints that were held back.

The step is not remembered but read off from what the proxy has acknowledged, at every event anew.
So a newer snapshot in the middle simply changes where all of this leads, and a change that needs no step skips it.
A NACK stops what depends on the refused resources and leaves the proxy on what it last accepted, until the next snapshot differs.
A proxy that says nothing holds up step 2 for `gate_timeout_s` at most; step 3 waits for as long as it takes, since breaking needs the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tidegate.routing.snapshot import Resource, Resources, Snapshot, TypeUrl, version_of
from tidegate.xds.messages import DiscoveryRequest, DiscoveryResponse
from tidegate.xds.subscription import WHOLE, Subscription, requested_names

GATE_TIMEOUT_S: Final = 10.0

# A proxy that comes with resources repeats all its subscriptions in one burst; this is long for a burst.
_REPEATS_WITHIN_S: Final = 0.5

_ORDER: Final = (TypeUrl.CLUSTER, TypeUrl.ENDPOINT, TypeUrl.LISTENER, TypeUrl.ROUTE)
_ROUTING: Final = (TypeUrl.LISTENER, TypeUrl.ROUTE)

# Whoever asks for every cluster (listener) is to have the endpoints (routes) of every one.
_FOLLOWS: Final = {TypeUrl.ENDPOINT: TypeUrl.CLUSTER, TypeUrl.ROUTE: TypeUrl.LISTENER}


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


class AdsStream:
    """The stream of one proxy. Every method takes the time in seconds of any steady clock, and returns what to send, in order.

    `placeholder` makes a stand-in for a cluster that a reconnecting proxy has and this process never knew.
    """

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
        self._placeholder = placeholder
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
        known = {**self._left_endpoints, **self._goal.resources[TypeUrl.ENDPOINT]}
        gone = clusters.sent.keys() - newer.resources[TypeUrl.CLUSTER].keys()
        self._left_endpoints = {name: known[name] for name in sorted(gone & known.keys())}

    def on_time(self, now: float) -> list[DiscoveryResponse]:
        """Time has passed."""
        return self._advance(now)

    def on_request(self, request: DiscoveryRequest, now: float) -> list[DiscoveryResponse]:
        """The proxy subscribes, accepts or refuses. Types that are not served are left unanswered."""
        self._node = self._node or request.node
        try:
            type_url = TypeUrl(request.type_url)
        except ValueError:
            return []
        subscription = self._subscriptions.get(type_url)
        if subscription is None:
            self._subscribe(type_url, request, now)
        elif request.nonce == subscription.nonce:
            self._answered(subscription, request)
        # Else it answers an older response; it answers the newer one too, with its newest list of names.
        return self._advance(now)

    def _subscribe(self, type_url: TypeUrl, request: DiscoveryRequest, now: float) -> None:
        if request.version and not self._warm:
            self._warm = True
            self._repeats_until = now + _REPEATS_WITHIN_S
        self._subscriptions[type_url] = Subscription(type_url, requested_names(type_url, request))

    def _answered(self, subscription: Subscription, request: DiscoveryRequest) -> None:
        if subscription.in_flight is not None:
            if request.error is None:
                _count(self.counters.acks, subscription.type_url)
                subscription.accept()
            else:
                _count(self.counters.nacks, subscription.type_url)
                subscription.refuse(request.error)
        subscription.ask_for(request.names)

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
            wanted = self._wanted(subscription, goal, breaking=settled)
            changed = subscription.to_send(wanted)
            if changed is not None:
                responses.append(self._send(subscription, changed, _version(goal, type_url, wanted)))
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

    def _send(
        self, subscription: Subscription, resources: dict[str, Resource], version: str
    ) -> DiscoveryResponse:
        type_url = subscription.type_url
        endpoints = self._subscriptions.get(TypeUrl.ENDPOINT)
        if type_url is TypeUrl.CLUSTER and endpoints is not None:
            endpoints.forget(frozenset(subscription.sent.keys() - resources.keys()))
        self._nonces += 1
        _count(self.counters.pushes, type_url)
        ordered = tuple(resources[name] for name in sorted(resources))
        subscription.send(resources, str(self._nonces))
        return DiscoveryResponse(type_url, version, subscription.nonce, ordered)

    def _wanted(self, subscription: Subscription, goal: Snapshot, *, breaking: bool) -> Resources:
        """What the proxy should have of this type at the present step."""
        wanted = dict(goal.resources[subscription.type_url])
        if subscription.type_url is TypeUrl.CLUSTER and not breaking:
            wanted |= self._leftover_clusters(subscription, wanted)
        if subscription.type_url is TypeUrl.ENDPOINT:
            wanted = dict(self._wanted_endpoints(subscription, goal, breaking=breaking))
        if subscription.names is None:
            return wanted
        return {name: resource for name, resource in wanted.items() if name in subscription.names}

    def _leftover_clusters(self, subscription: Subscription, target: Resources) -> dict[str, Resource]:
        """Clusters that the proxy may have and that a route of its may still lead to."""
        known = dict(subscription.sent)
        endpoints = self._subscriptions.get(TypeUrl.ENDPOINT)
        if self._warm and self._placeholder is not None and endpoints is not None:
            # From an earlier stream: it still asks for the endpoints, so the cluster is there.
            for name in (endpoints.names or frozenset()) - known.keys() - target.keys():
                stand_in = self._placeholder(name)
                if stand_in is not None:
                    known[name] = stand_in
        return {name: resource for name, resource in known.items() if name not in target}

    def _wanted_endpoints(
        self, subscription: Subscription, goal: Snapshot, *, breaking: bool
    ) -> Iterator[tuple[str, Resource]]:
        clusters = self._subscriptions.get(TypeUrl.CLUSTER)
        for name, resource in goal.resources[TypeUrl.ENDPOINT].items():
            held = subscription.held(name)
            cluster = goal.resources[TypeUrl.CLUSTER].get(name)
            # The endpoints of a changed cluster go after it, never before: it would wait for them in vain.
            early = clusters is not None and cluster is not None and not clusters.was_sent(cluster)
            if not (early or (not breaking and self._held_back(subscription, resource))):
                yield name, resource
            elif held is not None:
                yield name, held
        # A cluster that was overtaken before its endpoints went out gets them all the same: Envoy acknowledges no
        # clusters while one of them waits for its endpoints, and would wait 15 s for these.
        for name, resource in self._left_endpoints.items():
            if (
                name not in goal.resources[TypeUrl.ENDPOINT]
                and clusters is not None
                and name in clusters.sent
            ):
                yield name, resource

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
            subscription.refused is not None
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
        if any(not (clusters and clusters.has(cluster)) for cluster in self._due(TypeUrl.CLUSTER, goal)):
            return False
        endpoints = self._subscriptions.get(TypeUrl.ENDPOINT)
        # The routes must not wait for endpoints that wait for the routes.
        return all(
            endpoints is not None and (endpoints.has(due) or self._held_back(endpoints, due))
            for due in self._due(TypeUrl.ENDPOINT, goal)
        )

    def _routing_pending(self, goal: Snapshot) -> bool:
        return any(
            subscription.to_send(self._wanted(subscription, goal, breaking=False)) is not None
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
        subscription = self._subscriptions.get(type_url)
        if subscription is not None and subscription.is_complete(goal.resources[type_url]):
            return True
        due = self._due(type_url, goal)
        if subscription is None:
            # A proxy subscribes to endpoints and routes once it has something that needs them.
            return type_url not in WHOLE and not any(True for _ in due)
        if subscription.in_flight is not None or (type_url in WHOLE and subscription.accepted is None):
            return False
        if type_url in WHOLE and (subscription.accepted or {}).keys() - goal.resources[type_url].keys():
            return False
        if not all(subscription.has(resource) for resource in due):
            return False
        subscription.completed(goal.resources[type_url])
        return True

    def _due(self, type_url: TypeUrl, goal: Snapshot) -> Iterator[Resource]:
        """The resources of the goal that the proxy is to have in the end."""
        deciding = self._subscriptions.get(_FOLLOWS.get(type_url, type_url))
        own = self._subscriptions.get(type_url)
        everything = deciding is not None and deciding.names is None
        for resource in goal.resources[type_url].values():
            if everything or (own is not None and own.wants(resource.name)):
                yield resource


def _count(counter: dict[TypeUrl, int], type_url: TypeUrl) -> None:
    counter[type_url] = counter.get(type_url, 0) + 1


def _version(goal: Snapshot, type_url: TypeUrl, wanted: Resources) -> str:
    """The goal's own version of the type, or with a suffix while something else is kept or held back."""
    target = goal.resources[type_url]
    extra = {name: resource for name, resource in wanted.items() if target.get(name) != resource}
    return f"{goal.versions[type_url]}+{version_of(extra)}" if extra else goal.versions[type_url]

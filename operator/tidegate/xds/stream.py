"""One proxy's aggregated discovery stream as a pure state machine: requests, snapshots and the time go in, responses come out.

An update is make before break, in three phases (`UpdatePhase`); docs/explanation/xds.md has the picture.
The phase is not remembered. Each event derives it from what the proxy has acknowledged (`current_phase`), so a newer snapshot
in the middle of an update changes the goal, and an update that needs no MAKE starts with SWITCH or BREAK.
The time limit ends only MAKE: BREAK deletes clusters, so it waits for the proxy's ACK of routes that no longer reference them.

There are two exceptions. Secrets of the TLS port go out in every phase, and no other type waits for them.
A rejected resource stays as the proxy has it, and so do the routes that lead to it (xds.desired.HeldBack), until the next
snapshot has another version of it; all other resources are updated.

Once a proxy is known to run a snapshot in full, only what differs from that snapshot is checked: the work of an update is
proportional to its size, whatever the size of the fleet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from tidegate.routing.hosts import HostKey
from tidegate.routing.ir import HostState
from tidegate.xds.desired import (
    NOTHING_HELD_BACK,
    DesiredResources,
    ProxyUpdate,
    find_held_back,
    rejected_hosts,
)
from tidegate.xds.inspection import ProxyKind, SyncState
from tidegate.xds.messages import DiscoveryResponse
from tidegate.xds.resources import Snapshot, TypeUrl
from tidegate.xds.state import BACKENDS, ORDER, ROUTES, StreamState
from tidegate.xds.subscription import Change, Subscription

MAKE_TIMEOUT_S: Final = 10.0
"""How long listeners and routes wait for a proxy that does not answer."""


class UpdatePhase(Enum):
    """The phases of an update."""

    MAKE = auto()
    """New clusters and endpoints go out beside the old ones, until the proxy has them or has been silent for too long."""
    SWITCH = auto()
    """Listeners and routes go out, until the proxy runs them."""
    BREAK = auto()
    """Clusters that the goal no longer has are deleted, and their endpoints with them, until the proxy is in sync."""


def current_phase(state: StreamState, update: ProxyUpdate) -> UpdatePhase:
    """Return the phase that follows from what the proxy has acknowledged."""
    if _runs_routes(state, update):
        return UpdatePhase.BREAK
    return UpdatePhase.SWITCH if state.has_backends(update.goal) else UpdatePhase.MAKE


def _runs_routes(state: StreamState, update: ProxyUpdate) -> bool:
    """Return whether the proxy runs the goal's listeners and routes except those that are held back."""
    if not any(type_url in state.subscriptions for type_url in ROUTES):
        # A new proxy has no routes yet. A proxy that kept resources from an earlier stream may have some, and will subscribe to
        # them shortly.
        return not state.resumed
    return all(_is_settled(state, type_url, update) for type_url in ROUTES)


def _is_settled(state: StreamState, type_url: TypeUrl, update: ProxyUpdate) -> bool:
    """Return whether the proxy runs the goal's resources of this type except those that are held back."""
    names = state.differing_names(type_url, update.goal)
    return names is not None and all(
        update.held_back.is_exempt(type_url, name, update.goal) for name in names
    )


class DiscoveryRequest(Protocol):
    """What the requests of both protocols have; `node` and `user_agent` may be empty in all requests of a stream but the first."""

    @property
    def type_url(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def user_agent(self) -> str: ...


R = TypeVar("R", bound=DiscoveryRequest)


@dataclass(frozen=True, slots=True)
class RunningState:
    """What a proxy runs: `snapshot`, except for the objects in `differing_hosts`, whose version in the snapshot it rejected.

    None in `differing_hosts`: the proxy has no routes of that object.
    """

    snapshot: Snapshot
    differing_hosts: Mapping[HostKey, HostState | None] = field(
        default_factory=dict[HostKey, HostState | None]
    )

    def host_state(self, key: HostKey) -> HostState | None:
        """Return what the proxy runs of one object; None for nothing."""
        return self.differing_hosts[key] if key in self.differing_hosts else self.snapshot.hosts.get(key)

    @property
    def host_states(self) -> Mapping[HostKey, HostState]:
        """Hosts that the proxy runs, with the object and generation of each."""
        if not self.differing_hosts:
            return self.snapshot.hosts
        return {key: state for key, state in {**self.snapshot.hosts, **self.differing_hosts}.items() if state}


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """How far a proxy is on one stream.

    `acked`: the last snapshot that the proxy accepted in full, deletions included.
    `running`: the last snapshot that the proxy accepted, with the objects that it rejected.
    `rejected`: the objects whose version in the current goal the proxy rejected, with its reasons.
    `nack`: the reason of the proxy's last NACK.
    `resumed`: the proxy came with resources from an earlier stream (initial_resource_versions).
    """

    node: str
    acked: Snapshot | None
    nack: str | None
    resumed: bool
    running: RunningState | None = None
    rejected: Mapping[HostKey, str] = field(default_factory=dict[HostKey, str])


@dataclass(slots=True)
class StreamCounters:
    """What happened on the stream so far."""

    pushes: dict[TypeUrl, int] = field(default_factory=dict[TypeUrl, int])
    acks: dict[TypeUrl, int] = field(default_factory=dict[TypeUrl, int])
    nacks: dict[TypeUrl, int] = field(default_factory=dict[TypeUrl, int])
    make_timeouts: int = 0


class DiscoveryStream(ABC, Generic[R]):
    """What the streams of both kinds of proxies have in common; each adds how its requests (R) are read.

    Every method takes the time in seconds of any steady clock, and returns what to send, in order.
    """

    KIND: ClassVar[ProxyKind]

    def __init__(self, snapshot: Snapshot | None, *, make_timeout_s: float = MAKE_TIMEOUT_S) -> None:
        self.counters = StreamCounters()
        self._node = ""
        self._goal = snapshot
        self._state = StreamState()
        self._desired = DesiredResources(self._state)
        self._make_timeout_s = make_timeout_s
        self._routes_wait_since: float | None = None
        self._acked: Snapshot | None = None
        self._running: RunningState | None = None
        self._rejected: Mapping[HostKey, str] = {}
        self._nonces = 0

    @property
    def progress(self) -> StreamProgress:
        """Return how far the proxy is, and its reasons for what it rejects."""
        return StreamProgress(
            self._node, self._acked, self._state.error, self._state.resumed, self._running, self._rejected
        )

    def sync_states(self) -> Mapping[TypeUrl, SyncState]:
        """Return how far the proxy is with each type that it subscribes to."""
        return {
            type_url: self._sync_state(subscription)
            for type_url, subscription in self._state.subscriptions.items()
        }

    def _sync_state(self, subscription: Subscription) -> SyncState:
        if subscription.error is not None:
            return SyncState.NACKED
        if self._goal is None:
            return SyncState.NOT_SENT
        runs_all = self._state.runs_all(subscription.type_url, self._goal)
        return SyncState.SYNCED if runs_all else SyncState.STALE

    @property
    def wake_at(self) -> float | None:
        """Time at which `on_timer` must be called if nothing else happens before; None if there is none."""
        if self._routes_wait_since is None:
            return None
        return self._routes_wait_since + self._make_timeout_s

    def on_snapshot(self, snapshot: Snapshot, now: float) -> list[DiscoveryResponse]:
        """Make `snapshot` the goal; a response in flight stays outstanding, and what it lacks is sent after its ACK or NACK."""
        self._desired.note_overtaken(self._goal, snapshot)
        self._goal = snapshot
        return self._advance_phase(now)

    def on_request(self, request: R, now: float) -> list[DiscoveryResponse]:
        """Take a subscription, an ACK or a NACK. Types that are not served are left unanswered."""
        self._node = self._node or request.node
        try:
            type_url = TypeUrl(request.type_url)
        except ValueError:
            return []
        self._apply_request(type_url, request)
        return self._advance_phase(now)

    def on_timer(self, now: float) -> list[DiscoveryResponse]:
        """Advance the update if MAKE has timed out."""
        return self._advance_phase(now)

    @abstractmethod
    def _apply_request(self, type_url: TypeUrl, request: R) -> None:
        """Apply a request to the subscription of its type."""

    def _open_subscription(self, subscription: Subscription, *, resumed: bool) -> None:
        """Add a subscription; `resumed`: the proxy has resources of this type from an earlier stream."""
        self._state.subscriptions[subscription.type_url] = subscription
        self._state.resumed = self._state.resumed or resumed

    def _record_answer(self, subscription: Subscription, error: str | None) -> None:
        """Record the proxy's answer to what is in flight; `error` is the reason of a NACK."""
        if subscription.in_flight is None:
            return
        if error is None:
            _increment(self.counters.acks, subscription.type_url)
            subscription.record_ack()
        else:
            _increment(self.counters.nacks, subscription.type_url)
            subscription.record_nack(error)

    def _advance_phase(self, now: float) -> list[DiscoveryResponse]:
        """Send everything that may go out in the present phase."""
        goal = self._goal
        if goal is None:
            return []
        # 1. Hold back what the proxy rejected and the routes that lead to it, so that all other resources are updated.
        update = ProxyUpdate(goal, find_held_back(self._state, goal))
        self._rejected = rejected_hosts(self._state, goal, update.held_back)
        # 2. Derive the phase from what the proxy has acknowledged. Routes wait in MAKE until its timeout.
        phase = current_phase(self._state, update)
        if phase is not UpdatePhase.MAKE or not self._has_routes_to_send(update):
            self._routes_wait_since = None
        elif self._check_make_timeout(now):
            phase = UpdatePhase.SWITCH
        # 3. Send what this phase adds, changes or deletes.
        match phase:
            case UpdatePhase.MAKE:
                return self._send_new_clusters(update)
            case UpdatePhase.SWITCH:
                return self._send_routes(update)
            case UpdatePhase.BREAK:
                return self._delete_unreferenced(update)

    def _check_make_timeout(self, now: float) -> bool:
        """Start the timer of MAKE at the first call; return whether it has run out, and count that."""
        if self._routes_wait_since is None:
            self._routes_wait_since = now
        if now - self._routes_wait_since < self._make_timeout_s:
            return False
        self._routes_wait_since = None
        self.counters.make_timeouts += 1
        return True

    def _has_routes_to_send(self, update: ProxyUpdate) -> bool:
        subscriptions = (self._state.get(type_url) for type_url in ROUTES)
        return any(
            subscription is not None
            and subscription.in_flight is None
            and subscription.next_change(self._desired.find_desired(subscription, update)) is not None
            for subscription in subscriptions
        )

    def _send_new_clusters(self, update: ProxyUpdate) -> list[DiscoveryResponse]:
        """Send new clusters, endpoints and secrets beside the old ones."""
        return self._send_types((*BACKENDS, TypeUrl.SECRET), update)

    def _send_routes(self, update: ProxyUpdate) -> list[DiscoveryResponse]:
        """Send listeners and routes too, except routes to clusters that a silent proxy was never sent."""
        return self._send_types(ORDER, replace(update, unsent=self._state.unsent_clusters(update.goal)))

    def _delete_unreferenced(self, update: ProxyUpdate) -> list[DiscoveryResponse]:
        """Delete what no route leads to any more, and note when the proxy is in sync.

        The only routes still sent here restore the last accepted version of a scope that the proxy rejected.
        """
        update = replace(update, breaking=True)
        responses = self._send_types(ORDER, update)
        if all(_is_settled(self._state, type_url, update) for type_url in (*BACKENDS, TypeUrl.SECRET)):
            self._record_in_sync(update)
        return responses

    def _send_types(self, types: Iterable[TypeUrl], update: ProxyUpdate) -> list[DiscoveryResponse]:
        """Send what differs of these types. One response of each is in flight at a time, so a slow proxy gets only the newest state."""
        responses: list[DiscoveryResponse] = []
        for type_url in types:
            subscription = self._state.get(type_url)
            if subscription is None or subscription.in_flight is not None:
                continue
            change = subscription.next_change(self._desired.find_desired(subscription, update))
            if change is not None:
                responses.append(self._send_change(subscription, change, update.goal))
        return responses

    def _send_change(self, subscription: Subscription, change: Change, goal: Snapshot) -> DiscoveryResponse:
        type_url = subscription.type_url
        self._nonces += 1
        _increment(self.counters.pushes, type_url)
        content = sorted(subscription.response_content(change).items())
        deleted = subscription.record_sent(change, str(self._nonces))
        endpoints = self._state.get(TypeUrl.ENDPOINT)
        if type_url is TypeUrl.CLUSTER and endpoints is not None:
            endpoints.forget(deleted)
            # Envoy warms a changed cluster, so its endpoints must be sent again even if they are the same.
            endpoints.mark_for_resend(change.keys() - deleted)
        return DiscoveryResponse(
            type_url,
            goal.resources[type_url].version,
            subscription.nonce,
            tuple(resource for _, resource in content if resource is not None),
            tuple(name for name, resource in content if resource is None),
        )

    def _record_in_sync(self, update: ProxyUpdate) -> None:
        """Record that the proxy runs the goal and nothing else, except for what it rejected."""
        goal, before = update.goal, self._running
        if update.held_back is NOTHING_HELD_BACK:
            self._acked = goal
        else:
            self._mark_complete_except_differing(goal)
        differing_hosts = {
            host: None if before is None else before.host_state(host) for host in self._rejected
        }
        if before is None or before.snapshot is not goal or before.differing_hosts != differing_hosts:
            self._running = RunningState(goal, differing_hosts)

    def _mark_complete_except_differing(self, goal: Snapshot) -> None:
        """Mark each type as complete except for the differing names: only those are checked in the next updates."""
        for type_url, subscription in self._state.subscriptions.items():
            differing = self._state.differing_names(type_url, goal)
            if differing is not None:
                subscription.mark_complete(goal.resources[type_url], except_names=differing)


def _increment(counter: dict[TypeUrl, int], type_url: TypeUrl) -> None:
    counter[type_url] = counter.get(type_url, 0) + 1

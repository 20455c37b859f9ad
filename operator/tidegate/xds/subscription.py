"""What one proxy has of one type of resource, and what it reported about it.

The life of one resource on a stream:

                   send                ACK
      not sent ───────────► in flight ─────► accepted
                                │                ▲
                                │ NACK           │ ACK of a batch
                                ▼                │
                            suspected ───────────┘
                                │ NACK of a response with nothing else in it
                                ▼
                            rejected ──► not sent, once there is something else under its name
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.xds.resources import ResourceSet, TypeUrl, XdsResource

Change = dict[str, XdsResource | None]
"""Resources by name; None for one that is deleted."""

Desired = Mapping[str, XdsResource | None]
"""Desired resource by name, for names under which the proxy may have another one; None: no resource."""

# The server deletes resources of these types that the goal does not have. It deletes none of the other types: endpoints go
# with their cluster.
DELETED_TYPES: Final = frozenset({TypeUrl.CLUSTER, TypeUrl.LISTENER, TypeUrl.SCOPE})

# Envoy records every scope up to the rejected one without publishing any to its workers, then ignores those scopes as
# unchanged when they are sent again. So scopes of a rejected response first go back to what Envoy accepted.
ROLLED_BACK_TYPES: Final = frozenset({TypeUrl.SCOPE})


@dataclass(slots=True)
class NackBisector:
    """Finds the resources that a proxy rejects; a proxy rejects a response as a whole, and does not always name the resource.

    `suspects` is everything from rejected responses that was not accepted since.
    Suspects are sent again in batches: half as large after a NACK, twice as large after an ACK.
    `rejected` has the resources that were rejected alone, with the proxy's reason.
    They are not sent again until the goal has another version of them.
    """

    suspects: Change = field(default_factory=Change)
    rejected: dict[str, str] = field(default_factory=dict[str, str])
    _batch_size: int = 1

    def record_nack(self, change: Change, reason: str) -> None:
        """Suspect all of `change`; reject its resource if it has only one."""
        self.suspects |= change
        for name in change:
            self.rejected.pop(name, None)
        if len(change) == 1:
            self.rejected |= dict.fromkeys(change, reason)
        self._batch_size = max(1, len(change) // 2)

    def record_ack(self, names: Iterable[str]) -> None:
        """Clear the suspects that the proxy accepted, and let the next batch be larger."""
        if self.suspects:
            self._batch_size *= 2
            self.forget(names)

    def forget(self, names: Iterable[str]) -> None:
        """Clear `names` of all suspicion."""
        for name in names:
            self.suspects.pop(name, None)
            self.rejected.pop(name, None)

    def next_batch(self, change: Change) -> Change:
        """Return the part of `change` to send next.

        Resources that were never rejected come first, then suspects in batches. Nothing is left to send if all are rejected.
        """
        if not self.suspects:
            return change
        fresh = {name: resource for name, resource in change.items() if not self.is_suspect(name, resource)}
        if fresh:
            return fresh
        names = sorted(change.keys() - self.rejected.keys())
        return {name: change[name] for name in names[: self._batch_size]}

    def is_suspect(self, name: str, resource: XdsResource | None) -> bool:
        """Return whether exactly this resource (None: its deletion) was in a rejected response."""
        if name not in self.suspects:
            return False
        suspect = self.suspects[name]
        return (suspect and suspect.version) == (resource and resource.version)

    def rejected_in(self, resources: ResourceSet) -> Mapping[str, str]:
        """Return the reasons by name for what was rejected alone and is still in `resources`."""
        return {
            name: reason
            for name, reason in self.rejected.items()
            if self.is_suspect(name, resources.get(name))
        }


@dataclass(slots=True)
class Subscription(ABC):
    """One type on one stream.

    `names`: the names that the proxy subscribes to; None: all.
    `accepted`: the resources that the proxy accepted last, by name; None before its first ACK or NACK.
    `sent`: the resources that were sent to it last, accepted or not.
    `in_flight`: the changes in the response that it has not answered yet.
    `error`: the reason of its last NACK, while a resource of that response is suspected or rejected.
    `unseen`: resources that the proxy has from an earlier stream; only their versions are known.

    `_complete_with` and `_touched`: the proxy runs exactly this set of resources, except for the touched names.
    So only these names, and those that differ between this set and a newer one, have to be checked.
    `_to_roll_back`: names whose accepted version is sent again before anything else.
    `_to_resend`: accepted names that must be sent again, each with the nonce of the last response before the mark.
    """

    type_url: TypeUrl
    names: set[str] | None
    accepted: dict[str, XdsResource] | None = None
    sent: dict[str, XdsResource] = field(default_factory=dict[str, XdsResource])
    in_flight: Change | None = None
    bisector: NackBisector = field(default_factory=NackBisector)
    nonce: str = ""
    error: str | None = None
    unseen: dict[str, XdsResource] = field(default_factory=dict[str, XdsResource])
    _complete_with: ResourceSet | None = None
    _touched: set[str] = field(default_factory=set[str])
    _to_roll_back: set[str] = field(default_factory=set[str])
    _to_resend: dict[str, str] = field(default_factory=dict[str, str])

    def is_complete(self, resources: ResourceSet) -> bool:
        """Return whether the proxy is known to run exactly `resources`, as far as it subscribes to them."""
        return self._complete_with is resources and not self._touched

    def mark_complete(self, resources: ResourceSet, *, except_names: Collection[str] = ()) -> None:
        """Record that the proxy runs exactly `resources`, except for `except_names`."""
        self._complete_with = resources
        self._touched = set(except_names)

    def names_to_check(self, resources: ResourceSet) -> Collection[str]:
        """Return the names under which the proxy may have something else than `resources`."""
        if self._complete_with is None:
            return {*resources, *self.sent, *(self.accepted or ()), *self._touched}
        changed = resources.differing_names(self._complete_with)
        return changed if not self._touched else self._touched.union(changed)

    @property
    def has_answered(self) -> bool:
        """Return whether the proxy has answered any response, or came with resources from an earlier stream."""
        return self.accepted is not None or self.error is not None

    def wants_name(self, name: str) -> bool:
        """Return whether the proxy subscribes to `name`."""
        return self.names is None or name in self.names

    def get(self, name: str) -> XdsResource | None:
        """Return what the proxy last accepted under `name`."""
        return None if self.accepted is None else self.accepted.get(name)

    def runs_resource(self, resource: XdsResource) -> bool:
        """Return whether the proxy certainly runs this resource; for a placeholder, whether it runs any resource of that name.

        Suspects count as not running: Envoy may use part of a rejected response.
        """
        if resource.name in self.bisector.suspects or resource.name in self._to_resend:
            return False
        accepted = self.get(resource.name)
        if accepted is None:
            return False
        return accepted.version == resource.version or (
            resource.is_placeholder and not accepted.is_placeholder
        )

    def lacks_name(self, name: str) -> bool:
        """Return whether the proxy certainly has nothing under `name`."""
        return self.get(name) is None and name not in self.bisector.suspects

    def was_sent(self, resource: XdsResource) -> bool:
        """Return whether this is the resource that was sent last under its name."""
        sent = self.sent.get(resource.name)
        return sent is not None and sent.version == resource.version

    def is_emptied_by(self, endpoints: XdsResource) -> bool:
        """Return whether `endpoints` is empty and the proxy has endpoints under that name."""
        if not endpoints.vacant:
            return False
        accepted = self.get(endpoints.name)
        return accepted is not None and not accepted.vacant

    def kept_resource(self, name: str) -> XdsResource | None:
        """Return the resource to send so that nothing changes under `name`."""
        return self.get(name)

    def next_change(self, desired: Desired) -> Change | None:
        """Return what the next response changes to bring the proxy to `desired`; None if there is nothing to send."""
        if self._to_roll_back:
            return {name: self.get(name) for name in self._to_roll_back}
        change = self._find_difference(desired)
        if change:
            return self.bisector.next_batch(change) or None
        # A proxy waits for the first response of these types, even if that is empty.
        return change if not self.has_answered and self.type_url in DELETED_TYPES else None

    def _find_difference(self, desired: Desired) -> Change:
        change: Change = {
            name: resource
            for name, resource in desired.items()
            if resource is not None
            and not self.runs_resource(resource)
            and resource is not self.unseen.get(name)
        }
        if self.type_url in DELETED_TYPES:
            deleted = (name for name, resource in desired.items() if resource is None)
            change.update((name, None) for name in deleted if not self.lacks_name(name))
        return change

    @abstractmethod
    def response_content(self, change: Change) -> Change:
        """Return the content of the response that makes `change`: resources by name, None for deleted names."""

    def record_sent(self, change: Change, nonce: str) -> frozenset[str]:
        """Record that `change` is in flight; return the names that it deletes."""
        self.nonce = nonce
        self.in_flight = change
        deleted = frozenset(name for name, resource in change.items() if resource is None)
        for name, resource in change.items():
            if resource is None or not self.runs_resource(resource):
                self._touched.add(name)
            if resource is not None:
                self.sent[name] = resource
        _drop_names(self.sent, deleted)
        return deleted

    def mark_for_resend(self, names: Collection[str]) -> None:
        """Send `names` again, although the proxy has accepted them.

        Answers to responses that were sent before this call are ignored for them.
        """
        self._touched.update(names)
        self._to_resend.update(dict.fromkeys(names, self.nonce))

    def record_ack(self) -> None:
        """Record that the proxy accepted the response in flight."""
        change = self.in_flight or {}
        self.in_flight = None
        self.accepted = {} if self.accepted is None else self.accepted
        _drop_names(self.unseen, change)
        for name, resource in change.items():
            if resource is None:
                self.accepted.pop(name, None)
            else:
                self.accepted[name] = resource
            if self._to_resend.get(name) != self.nonce:
                self._to_resend.pop(name, None)
        if self._to_roll_back:
            self._to_roll_back = set()
        else:
            self.bisector.record_ack(change)
        self._clear_error()

    def record_nack(self, reason: str) -> None:
        """Record that the proxy rejected the response in flight, and keeps the resources that it had."""
        change = self.in_flight or {}
        self.in_flight = None
        self._touched |= change.keys()
        self.error = reason
        if self._to_roll_back:
            self._to_roll_back = set()
            return
        self.bisector.record_nack(change, reason)
        if self.type_url in ROLLED_BACK_TYPES and len(change) > 1:
            self._to_roll_back = change.keys() - self.unseen.keys()

    def forget(self, names: Collection[str]) -> None:
        """Forget what the proxy has under `names`, which it dropped; they are sent again if it subscribes again."""
        self._touched.update(names)
        for by_name in (self.accepted, self.sent, self.in_flight, self.unseen):
            if by_name is not None:
                _drop_names(by_name, names)
        _drop_names(self._to_resend, names)
        self._to_roll_back.difference_update(names)
        if self.bisector.suspects:
            self.bisector.forget(names)
            self._clear_error()

    def _clear_error(self) -> None:
        if not self.bisector.suspects:
            self.error = None


def _drop_names(by_name: dict[str, Any], names: Collection[str]) -> None:
    for name in [name for name in names if name in by_name]:
        del by_name[name]

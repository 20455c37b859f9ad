"""Plan the ComputeOverrides that `hold`, `override`, `resume` and the dashboard write and end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from tidegate.api.compute_override import (
    MAX_OVERRIDE_DURATION,
    ComputeOverride,
    OverrideAction,
    OverrideKind,
)
from tidegate.api.compute_pool import ComputePool
from tidegate.api.conditions import format_timestamp
from tidegate.api.durations import format_duration, parse_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import API_VERSION, ObjectKey
from tidegate.errors import PermanentError
from tidegate.planning.pools.overrides import NO_RANGE, select_active_for
from tidegate.resources.names import make_child_name

_MIN_LIFETIME: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class OverrideRequest:
    """The requested override. Without pin and floor it holds the target."""

    duration: str
    reason: str
    pin: int | None = None
    floor: int | None = None

    @property
    def action(self) -> OverrideAction:
        """Return the effect of the requested override."""
        if self.pin is not None:
            return OverrideAction.PIN
        return OverrideAction.HOLD if self.floor is None else OverrideAction.FLOOR


@dataclass(frozen=True, slots=True)
class OverrideContext:
    """An Inference or a ComputePool with its overrides, as read at one time."""

    inference: Inference | None
    pool: ComputePool | None
    """The target, or the pool of the Inference; absent if it does not exist."""
    overrides: Sequence[ComputeOverride]
    now: datetime

    @property
    def kind(self) -> OverrideKind:
        """Return the kind of the target."""
        return OverrideKind.COMPUTE_POOL if self.inference is None else OverrideKind.INFERENCE

    @property
    def key(self) -> ObjectKey:
        """Return the key of the target."""
        target = self.inference or self.pool
        if target is None:
            message = "neither an Inference nor a ComputePool"
            raise ValueError(message)
        return target.key

    @property
    def active_overrides(self) -> tuple[ComputeOverride, ...]:
        """Return the target's active overrides, the oldest first."""
        return select_active_for(self.overrides, self.kind, self.key, self.now)

    def find_own(self, action: OverrideAction) -> ComputeOverride | None:
        """Return the override that an earlier command made about the target.

        Raises PermanentError when an override of that name has another target.
        """
        name = make_override_name(action, self.kind, self.key)
        override = next((candidate for candidate in self.overrides if candidate.metadata.name == name), None)
        if override is not None and (override.spec.target.kind, override.spec.target.key) != (
            self.kind,
            self.key,
        ):
            message = (
                f"ComputeOverride {name} targets {override.spec.target.kind} {override.spec.target.key}: "
                f"kubectl delete computeoverride {name}, and try again"
            )
            raise PermanentError(message)
        return override


@dataclass(frozen=True, slots=True)
class OverrideWrite:
    """What to write: delete an ended override and create `body`, or merge `body` into the existing one."""

    body: Mapping[str, Any]
    ended: ComputeOverride | None = None
    existing: ComputeOverride | None = None
    shortened: str = ""
    """Why the override ends earlier than requested, if it does."""


def make_override_name(action: OverrideAction, kind: OverrideKind, key: ObjectKey) -> str:
    """Return the name of the only override with this action on a target, so that commands are idempotent."""
    # Neither namespaces nor names contain dots, so the joined name is unique; child_name adds a hash to names with a dot.
    full_name = key.name if kind is OverrideKind.COMPUTE_POOL else f"{key.namespace}.{key.name}"
    return make_child_name(action.value.lower(), full_name)


def check_request(request: OverrideRequest) -> None:
    """Check what needs no cluster: the reason and the duration. Raises PermanentError or ValueError, with the way out."""
    if not request.reason.strip():
        message = "--reason is empty: say why, in words for those who find it"
        raise PermanentError(message)
    _parse_lifetime(request.duration)


def plan_override_write(context: OverrideContext, request: OverrideRequest) -> OverrideWrite:
    """Return the override to write.

    Raises PermanentError or ValueError, with the way out, for an impossible request.
    """
    check_request(request)
    _check_target(context, request)
    lifetime = _parse_lifetime(request.duration)
    name = make_override_name(request.action, context.kind, context.key)
    existing = context.find_own(request.action)
    active = existing is not None and existing.end_time > context.now
    until, shortened = _limit_end(context.now + lifetime, existing if active else None)
    # null removes a field from an existing override, whatever its user made of it.
    spec: dict[str, Any] = {
        "pin": None if request.pin is None else {"replicas": request.pin},
        "floor": None if request.floor is None else {"replicas": request.floor},
        "hold": request.action is OverrideAction.HOLD,
        "reason": request.reason,
        "expiresAt": format_timestamp(until),
    }
    if existing is not None and active:
        version = {"resourceVersion": existing.metadata.resource_version}
        return OverrideWrite({"metadata": version, "spec": spec}, existing=existing, shortened=shortened)
    target = {"kind": context.kind.value, "name": context.key.name}
    if context.kind is OverrideKind.INFERENCE:
        target["namespace"] = context.key.namespace
    body = {
        "apiVersion": API_VERSION,
        "kind": ComputeOverride.KIND,
        "metadata": {"name": name},
        "spec": {"target": target, **{field: value for field, value in spec.items() if value is not None}},
    }
    ComputeOverride.parse(body)  # raises for an invalid override before anything is sent
    return OverrideWrite(body, ended=existing)


def preview_override(context: OverrideContext, write: OverrideWrite) -> ComputeOverride:
    """Return the override as the API server would store it now."""
    base: Mapping[str, Any] = write.existing.dump() if write.existing is not None else write.body
    spec = {**base["spec"], **write.body["spec"]}
    return ComputeOverride.parse(
        {
            **base,
            "metadata": {"creationTimestamp": format_timestamp(context.now), **base["metadata"]},
            "spec": {field: value for field, value in spec.items() if value is not None},
        }
    )


def plan_ending(context: OverrideContext, *actions: OverrideAction) -> tuple[ComputeOverride, ...]:
    """Return the overrides that these commands made about the target, whether they have ended or not."""
    return tuple(override for override in map(context.find_own, actions) if override is not None)


def _check_target(context: OverrideContext, request: OverrideRequest) -> None:
    if context.inference is not None and context.inference.spec.scaling is None:
        message = f"an override decides nothing about Inference {context.key}, whose {NO_RANGE}"
        raise PermanentError(message)
    if context.inference is None and request.action is not OverrideAction.HOLD:
        message = f"ComputePool {context.key} can only be held: name an Inference"
        raise PermanentError(message)


def _parse_lifetime(text: str) -> timedelta:
    lifetime = parse_duration(text)
    if not _MIN_LIFETIME <= lifetime <= MAX_OVERRIDE_DURATION:
        shortest, longest = format_duration(_MIN_LIFETIME), format_duration(MAX_OVERRIDE_DURATION)
        message = f"--for {text}: an override lasts from {shortest} to {longest}"
        raise PermanentError(message)
    return lifetime


def _limit_end(requested_end: datetime, existing: ComputeOverride | None) -> tuple[datetime, str]:
    """Return the end of the override in whole seconds, and why it is earlier than requested, if it is.

    Changing an override does not restart its longest lifetime.
    """
    created = existing.metadata.creation_timestamp if existing is not None else None
    # Cut, not rounded up: the API server cuts the creation time and counts from there.
    until = requested_end.replace(microsecond=0)
    if existing is None or created is None or until <= created + MAX_OVERRIDE_DURATION:
        return until, ""
    reason = (
        f"ComputeOverride {existing.metadata.name} was made at {format_timestamp(created)}, and none lasts longer than "
        f"{format_duration(MAX_OVERRIDE_DURATION)}: end it and make a new one for more"
    )
    return created + MAX_OVERRIDE_DURATION, reason

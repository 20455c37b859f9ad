"""Plan and report what `hold`, `override` and `resume` do about a ComputeOverride."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from tidegate.api.compute_override import MAX_OVERRIDE_DURATION, ComputeOverride, OverrideKind
from tidegate.api.compute_pool import ComputePool, PolicyMode
from tidegate.api.conditions import format_timestamp
from tidegate.api.durations import format_duration, parse_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import API_VERSION, ObjectKey
from tidegate.errors import PermanentError
from tidegate.planning.pools.overrides import NO_RANGE, describe_override
from tidegate.reports.report import Report, format_name
from tidegate.reports.shared import (
    HoldReport,
    OverrideAction,
    OverrideReport,
    report_holds,
    report_pool_holds,
    select_in_force,
)
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
    def in_force(self) -> tuple[ComputeOverride, ...]:
        """Return the target's overrides in force, the oldest first."""
        return select_in_force(self.overrides, self.kind, self.key, self.now)

    def find_own(self, action: OverrideAction) -> ComputeOverride | None:
        """Return the override that an earlier command made about the target.

        Raises PermanentError when an override of that name has another target.
        """
        name = override_name(action, self.kind, self.key)
        override = next((candidate for candidate in self.overrides if candidate.metadata.name == name), None)
        if override is not None and (override.spec.target.kind, override.spec.target.key) != (
            self.kind,
            self.key,
        ):
            message = (
                f"ComputeOverride {name} is about {override.spec.target.kind} {override.spec.target.key}: "
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


class OverrideEffect(StrEnum):
    """The effect of a command."""

    MADE = "Made"
    CHANGED = "Changed"
    ENDED = "Ended"
    NOTHING_TO_END = "NothingToEnd"


class SteeringReport(Report):
    """The overrides that a command wrote or ended, and what else affects the target."""

    target_kind: OverrideKind
    target: str
    done: OverrideEffect
    overrides: tuple[OverrideReport, ...]
    """The overrides that were made, changed or ended."""
    warnings: tuple[str, ...]
    """Why the override has no effect, or not its full one."""
    held_by: tuple[HoldReport, ...]
    """What else holds the target, or the pool of an Inference."""

    @property
    def still_held(self) -> bool:
        """Return whether something holds the target that this command did not end."""
        return bool(self.held_by)

    def render_lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a line per override; `wide` adds its author, if the API server records it."""
        if self.done is OverrideEffect.NOTHING_TO_END:
            yield f"{self.target_kind} {self.target}: this command has made no ComputeOverride, nothing to end"
        for override in self.overrides:
            by = f" by {override.author}" if wide and override.author else ""
            ended = "ended " if self.done is OverrideEffect.ENDED else ""
            until = f"until {format_timestamp(override.until)}: {override.reason}"
            effect = _EFFECTS[override.action].format(override.replicas)
            yield f"{self.target_kind} {self.target}: {ended}ComputeOverride {override.name}{by}, {effect} {until}"
        for warning in self.warnings:
            yield f"  warning: {warning}"
        for hold in self.held_by:
            yield f"  held as well: {hold.message}"

    def object_names(self) -> Iterator[str]:
        """Yield the overrides' names."""
        return (format_name(ComputeOverride.KIND, override.name) for override in self.overrides)


_EFFECTS: Final[Mapping[OverrideAction, str]] = {
    OverrideAction.HOLD: "hold",
    OverrideAction.PIN: "pin to {} replicas",
    OverrideAction.FLOOR: "floor of {} replicas",
}


def override_name(action: OverrideAction, kind: OverrideKind, key: ObjectKey) -> str:
    """Return the name of the only override with this action on a target, so that commands are idempotent."""
    # Neither namespaces nor names contain dots, so the joined name is unique; child_name adds a hash to names with a dot.
    full_name = key.name if kind is OverrideKind.COMPUTE_POOL else f"{key.namespace}.{key.name}"
    return make_child_name(action.value.lower(), full_name)


def plan_override(context: OverrideContext, request: OverrideRequest) -> OverrideWrite:
    """Return the override to write.

    Raises PermanentError or ValueError, with the way out, for an impossible request.
    """
    _check_request(context, request)
    lifetime = _parse_lifetime(request.duration)
    name = override_name(request.action, context.kind, context.key)
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


def report_applied(
    context: OverrideContext, write: OverrideWrite, written: ComputeOverride
) -> SteeringReport:
    """Report an override that was written.

    `context` is from before the write; `written` is what the API server stored.
    """
    shortened = (write.shortened,) if write.shortened else ()
    other_overrides = [
        override for override in context.in_force if override.metadata.name != written.metadata.name
    ]
    return SteeringReport(
        target_kind=context.kind,
        target=str(context.key),
        done=OverrideEffect.MADE if write.existing is None else OverrideEffect.CHANGED,
        overrides=(OverrideReport.from_override(written),),
        warnings=(
            *shortened,
            *_mode_warnings(context),
            *_range_warnings(context, written),
            *_precedence_warnings(written, other_overrides),
        ),
        held_by=_other_holds(context, ended_names=(written.metadata.name,)),
    )


def plan_ending(context: OverrideContext, *actions: OverrideAction) -> tuple[ComputeOverride, ...]:
    """Return the overrides that these commands made about the target, whether they have ended or not."""
    return tuple(override for override in map(context.find_own, actions) if override is not None)


def report_ended(context: OverrideContext, ended: Sequence[ComputeOverride]) -> SteeringReport:
    """Report overrides that were ended."""
    return SteeringReport(
        target_kind=context.kind,
        target=str(context.key),
        done=OverrideEffect.ENDED if ended else OverrideEffect.NOTHING_TO_END,
        overrides=tuple(OverrideReport.from_override(override) for override in ended),
        warnings=(*_mode_warnings(context), *_remaining_warnings(context, ended)),
        held_by=_other_holds(context, ended_names=tuple(override.metadata.name for override in ended)),
    )


def _check_request(context: OverrideContext, request: OverrideRequest) -> None:
    if not request.reason.strip():
        message = "--reason is empty: say why, in words for those who find it"
        raise PermanentError(message)
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


def _mode_warnings(context: OverrideContext) -> Iterator[str]:
    if context.pool is None and context.inference is not None:
        placement = context.inference.spec.placement
        yield f"there is no ComputePool {placement.pool if placement is not None else ''} whose allocator could decide"
    elif context.pool is not None and context.pool.spec.policy.mode is PolicyMode.RECOMMEND_ONLY:
        yield f"ComputePool {context.pool.key} is in mode RecommendOnly: decisions are written, and nothing moves"


def _range_warnings(context: OverrideContext, written: ComputeOverride) -> Iterator[str]:
    scaling = context.inference.spec.scaling if context.inference is not None else None
    amount = written.spec.pin or written.spec.floor
    if scaling is None or amount is None:
        return
    minimum, maximum, count = scaling.min_replicas, scaling.max_replicas, amount.replicas
    if not minimum <= count <= maximum:
        effective = min(max(count, minimum), maximum)
        yield f"spec.scaling of Inference {context.key} is {minimum} to {maximum}: {count} counts as {effective}"


def _precedence_warnings(
    written: ComputeOverride, other_overrides: Sequence[ComputeOverride]
) -> Iterator[str]:
    """Yield what takes precedence: the newest of pins and holds counts, and both count before floors."""
    exact = [override for override in other_overrides if override.spec.floor is None]
    if not exact:
        return
    newest = exact[-1]
    if written.spec.floor is not None:
        yield f"{describe_override(newest)}; pins and holds count before floors"
    elif _creation_order(newest) > _creation_order(written):
        yield f"{describe_override(newest)}; it is newer, and the newest pin or hold counts"


def _remaining_warnings(context: OverrideContext, ended: Sequence[ComputeOverride]) -> Iterator[str]:
    names = {override.metadata.name for override in ended}
    for override in context.in_force:
        if override.metadata.name not in names and not override.spec.hold:
            yield f"{describe_override(override)}; {_describe_end(override, context)}"


def _other_holds(context: OverrideContext, *, ended_names: Sequence[str]) -> tuple[HoldReport, ...]:
    holds = [*report_holds(context.in_force)] if context.inference is not None else []
    if context.pool is not None:
        holds += report_pool_holds(context.pool, context.overrides, context.now)
    return tuple(hold for hold in holds if hold.name is None or hold.name not in ended_names)


def _describe_end(override: ComputeOverride, context: OverrideContext) -> str:
    name = override.metadata.name
    if name in {override_name(action, context.kind, context.key) for action in OverrideAction}:
        return f"tidegate override {context.key} --end ends it"
    return f"kubectl delete computeoverride {name} ends it"


def _creation_order(override: ComputeOverride) -> tuple[str, str]:
    created = override.metadata.creation_timestamp
    return (created.isoformat() if created is not None else "", override.metadata.name)

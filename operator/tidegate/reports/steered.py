"""Plan and report what `hold`, `override` and `resume` do about a ComputeOverride."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from tidegate.api.compute_override import LONGEST, ComputeOverride, OverrideKind
from tidegate.api.compute_pool import ComputePool, PolicyMode
from tidegate.api.conditions import timestamp
from tidegate.api.durations import format_duration, parse_duration
from tidegate.api.inference import Inference
from tidegate.api.meta import API_VERSION, ObjectKey
from tidegate.errors import PermanentError
from tidegate.planning.overrides import NO_RANGE, described
from tidegate.reports.report import Report, named
from tidegate.reports.standing import (
    HoldReport,
    OverrideAction,
    OverrideReport,
    holds_of,
    holds_of_pool,
    in_force_about,
)
from tidegate.resources.names import child_name

_SHORTEST: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The requested override. Without pin and floor it holds the target."""

    lasting: str
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
class Steered:
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
        return in_force_about(self.overrides, self.kind, self.key, self.now)

    def own(self, action: OverrideAction) -> ComputeOverride | None:
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
class Step:
    """What to write: delete an ended override and create `body`, or merge `body` into the existing one."""

    body: Mapping[str, Any]
    ended: ComputeOverride | None = None
    existing: ComputeOverride | None = None
    shortened: str = ""
    """Why the override ends earlier than requested, if it does."""


class Done(StrEnum):
    """The effect of a command."""

    MADE = "Made"
    CHANGED = "Changed"
    ENDED = "Ended"
    NOTHING_TO_END = "NothingToEnd"


class SteeringReport(Report):
    """The overrides that a command wrote or ended, and what else affects the target."""

    target_kind: OverrideKind
    target: str
    done: Done
    overrides: tuple[OverrideReport, ...]
    """The overrides that were made, changed or ended."""
    in_the_way: tuple[str, ...]
    """Why the override has no effect, or not its full one."""
    held_by: tuple[HoldReport, ...]
    """What else holds the target, or the pool of an Inference."""

    @property
    def still_held(self) -> bool:
        """Return whether something holds the target that this command did not end."""
        return bool(self.held_by)

    def lines(self, *, wide: bool) -> Iterator[str]:
        """Yield a line per override; `wide` adds its author, if the API server records it."""
        if self.done is Done.NOTHING_TO_END:
            yield f"{self.target_kind} {self.target}: this command has made no ComputeOverride, nothing to end"
        for override in self.overrides:
            by = f" by {override.author}" if wide and override.author else ""
            ended = "ended " if self.done is Done.ENDED else ""
            until = f"until {timestamp(override.until)}: {override.reason}"
            effect = _DOES[override.action].format(override.replicas)
            yield f"{self.target_kind} {self.target}: {ended}ComputeOverride {override.name}{by}, {effect} {until}"
        for warning in self.in_the_way:
            yield f"  warning: {warning}"
        for hold in self.held_by:
            yield f"  held as well: {hold.said}"

    def names(self) -> Iterator[str]:
        """Yield the overrides' names."""
        return (named(ComputeOverride.KIND, override.name) for override in self.overrides)


_DOES: Final[Mapping[OverrideAction, str]] = {
    OverrideAction.HOLD: "hold",
    OverrideAction.PIN: "pin to {} replicas",
    OverrideAction.FLOOR: "floor of {} replicas",
}


def override_name(action: OverrideAction, kind: OverrideKind, key: ObjectKey) -> str:
    """Return the name of the only override with this action on a target, so that commands are idempotent."""
    # Neither namespaces nor names contain dots, so the joined name is unique; child_name adds a hash to names with a dot.
    full_name = key.name if kind is OverrideKind.COMPUTE_POOL else f"{key.namespace}.{key.name}"
    return child_name(action.value.lower(), full_name)


def plan_steering(seen: Steered, wanted: Wanted) -> Step:
    """Return the override to write.

    Raises PermanentError or ValueError, with the way out, for an impossible request.
    """
    _check(seen, wanted)
    lifetime = _lasting(wanted.lasting)
    name = override_name(wanted.action, seen.kind, seen.key)
    existing = seen.own(wanted.action)
    active = existing is not None and existing.ends > seen.now
    until, shortened = _end(seen.now + lifetime, existing if active else None)
    # null removes a field from an existing override, whatever its user made of it.
    spec: dict[str, Any] = {
        "pin": None if wanted.pin is None else {"replicas": wanted.pin},
        "floor": None if wanted.floor is None else {"replicas": wanted.floor},
        "hold": wanted.action is OverrideAction.HOLD,
        "reason": wanted.reason,
        "expiresAt": timestamp(until),
    }
    if existing is not None and active:
        version = {"resourceVersion": existing.metadata.resource_version}
        return Step({"metadata": version, "spec": spec}, existing=existing, shortened=shortened)
    target = {"kind": seen.kind.value, "name": seen.key.name}
    if seen.kind is OverrideKind.INFERENCE:
        target["namespace"] = seen.key.namespace
    body = {
        "apiVersion": API_VERSION,
        "kind": ComputeOverride.KIND,
        "metadata": {"name": name},
        "spec": {"target": target, **{field: value for field, value in spec.items() if value is not None}},
    }
    ComputeOverride.parse(body)  # raises for an invalid override before anything is sent
    return Step(body, ended=existing)


def told(seen: Steered, step: Step, written: ComputeOverride) -> SteeringReport:
    """Report an override that was written.

    `seen` is from before the write; `written` is what the API server stored.
    """
    shortened = (step.shortened,) if step.shortened else ()
    other_overrides = [
        override for override in seen.in_force if override.metadata.name != written.metadata.name
    ]
    return SteeringReport(
        target_kind=seen.kind,
        target=str(seen.key),
        done=Done.MADE if step.existing is None else Done.CHANGED,
        overrides=(OverrideReport.of(written),),
        in_the_way=(
            *shortened,
            *_of_mode(seen),
            *_of_range(seen, written),
            *_of_others(written, other_overrides),
        ),
        held_by=_holds(seen, but=(written.metadata.name,)),
    )


def plan_end(seen: Steered, *actions: OverrideAction) -> tuple[ComputeOverride, ...]:
    """Return the overrides that these commands made about the target, whether they have ended or not."""
    return tuple(override for override in map(seen.own, actions) if override is not None)


def told_end(seen: Steered, ended: Sequence[ComputeOverride]) -> SteeringReport:
    """Report overrides that were ended."""
    return SteeringReport(
        target_kind=seen.kind,
        target=str(seen.key),
        done=Done.ENDED if ended else Done.NOTHING_TO_END,
        overrides=tuple(OverrideReport.of(override) for override in ended),
        in_the_way=(*_of_mode(seen), *_left(seen, ended)),
        held_by=_holds(seen, but=tuple(override.metadata.name for override in ended)),
    )


def _check(seen: Steered, wanted: Wanted) -> None:
    if not wanted.reason.strip():
        message = "--reason is empty: say why, in words for those who find it"
        raise PermanentError(message)
    if seen.inference is not None and seen.inference.spec.scaling is None:
        message = f"an override decides nothing about Inference {seen.key}, whose {NO_RANGE}"
        raise PermanentError(message)
    if seen.inference is None and wanted.action is not OverrideAction.HOLD:
        message = f"ComputePool {seen.key} can only be held: name an Inference"
        raise PermanentError(message)


def _lasting(text: str) -> timedelta:
    lifetime = parse_duration(text)
    if not _SHORTEST <= lifetime <= LONGEST:
        shortest, longest = format_duration(_SHORTEST), format_duration(LONGEST)
        message = f"--for {text}: an override lasts from {shortest} to {longest}"
        raise PermanentError(message)
    return lifetime


def _end(asked: datetime, existing: ComputeOverride | None) -> tuple[datetime, str]:
    """Return the end of the override in whole seconds, and why it is earlier than requested, if it is.

    Changing an override does not restart its longest lifetime.
    """
    created = existing.metadata.creation_timestamp if existing is not None else None
    # Cut, not rounded up: the API server cuts the creation time and counts from there.
    until = asked.replace(microsecond=0)
    if existing is None or created is None or until <= created + LONGEST:
        return until, ""
    reason = (
        f"ComputeOverride {existing.metadata.name} was made at {timestamp(created)}, and none lasts longer than "
        f"{format_duration(LONGEST)}: end it and make a new one for more"
    )
    return created + LONGEST, reason


def _of_mode(seen: Steered) -> Iterator[str]:
    if seen.pool is None and seen.inference is not None:
        placement = seen.inference.spec.placement
        yield f"there is no ComputePool {placement.pool if placement is not None else ''} whose allocator could decide"
    elif seen.pool is not None and seen.pool.spec.policy.mode is PolicyMode.RECOMMEND_ONLY:
        yield f"ComputePool {seen.pool.key} is in mode RecommendOnly: decisions are written, and nothing moves"


def _of_range(seen: Steered, written: ComputeOverride) -> Iterator[str]:
    scaling = seen.inference.spec.scaling if seen.inference is not None else None
    amount = written.spec.pin or written.spec.floor
    if scaling is None or amount is None:
        return
    minimum, maximum, count = scaling.min_replicas, scaling.max_replicas, amount.replicas
    if not minimum <= count <= maximum:
        effective = min(max(count, minimum), maximum)
        yield f"spec.scaling of Inference {seen.key} is {minimum} to {maximum}: {count} counts as {effective}"


def _of_others(written: ComputeOverride, others: Sequence[ComputeOverride]) -> Iterator[str]:
    """Yield what takes precedence: the newest of pins and holds counts, and both count before floors."""
    exact = [override for override in others if override.spec.floor is None]
    if not exact:
        return
    newest = exact[-1]
    if written.spec.floor is not None:
        yield f"{described(newest)}; pins and holds count before floors"
    elif _made(newest) > _made(written):
        yield f"{described(newest)}; it is newer, and the newest pin or hold counts"


def _left(seen: Steered, ended: Sequence[ComputeOverride]) -> Iterator[str]:
    names = {override.metadata.name for override in ended}
    for override in seen.in_force:
        if override.metadata.name not in names and not override.spec.hold:
            yield f"{described(override)}; {_way_out(override, seen)}"


def _holds(seen: Steered, *, but: Sequence[str]) -> tuple[HoldReport, ...]:
    holds = [*holds_of(seen.in_force)] if seen.inference is not None else []
    if seen.pool is not None:
        holds += holds_of_pool(seen.pool, seen.overrides, seen.now)
    return tuple(hold for hold in holds if hold.name is None or hold.name not in but)


def _way_out(override: ComputeOverride, seen: Steered) -> str:
    name = override.metadata.name
    if name in {override_name(action, seen.kind, seen.key) for action in OverrideAction}:
        return f"tidegate override {seen.key} --end ends it"
    return f"kubectl delete computeoverride {name} ends it"


def _made(override: ComputeOverride) -> tuple[str, str]:
    created = override.metadata.creation_timestamp
    return (created.isoformat() if created is not None else "", override.metadata.name)

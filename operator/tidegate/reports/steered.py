"""What `hold`, `override` and `resume` do about a ComputeOverride, planned and told."""

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
    """What is asked for. Neither pin nor floor: hold."""

    lasting: str
    reason: str
    pin: int | None = None
    floor: int | None = None

    @property
    def action(self) -> OverrideAction:
        """Which of the three."""
        if self.pin is not None:
            return OverrideAction.PIN
        return OverrideAction.HOLD if self.floor is None else OverrideAction.FLOOR


@dataclass(frozen=True, slots=True)
class Steered:
    """An Inference or a ComputePool, what is known about it, and when that was."""

    inference: Inference | None
    pool: ComputePool | None
    """The target, or where the Inference is placed; absent where there is none."""
    overrides: Sequence[ComputeOverride]
    now: datetime

    @property
    def kind(self) -> OverrideKind:
        """Of the target."""
        return OverrideKind.COMPUTE_POOL if self.inference is None else OverrideKind.INFERENCE

    @property
    def key(self) -> ObjectKey:
        """Of the target."""
        target = self.inference or self.pool
        if target is None:
            message = "neither an Inference nor a ComputePool"
            raise ValueError(message)
        return target.key

    @property
    def in_force(self) -> tuple[ComputeOverride, ...]:
        """About the target, the oldest first."""
        return in_force_about(self.overrides, self.kind, self.key, self.now)

    def own(self, action: OverrideAction) -> ComputeOverride | None:
        """What an earlier command made about the target. Raises PermanentError when its name is another's."""
        name = override_name(action, self.kind, self.key)
        found = next((each for each in self.overrides if each.metadata.name == name), None)
        if found is not None and (found.spec.target.kind, found.spec.target.key) != (self.kind, self.key):
            message = (
                f"ComputeOverride {name} is about {found.spec.target.kind} {found.spec.target.key}: "
                f"kubectl delete computeoverride {name}, and try again"
            )
            raise PermanentError(message)
        return found


@dataclass(frozen=True, slots=True)
class Step:
    """What to do: delete one that has ended, then create `body`, or merge it into the one that there is."""

    body: Mapping[str, Any]
    ended: ComputeOverride | None = None
    existing: ComputeOverride | None = None
    shortened: str = ""
    """Why it ends earlier than was asked for, where it does."""


class Done(StrEnum):
    """What a command did."""

    MADE = "Made"
    CHANGED = "Changed"
    ENDED = "Ended"
    NOTHING_TO_END = "NothingToEnd"


class SteeringReport(Report):
    """What a command did about overrides, and what else there is."""

    target_kind: OverrideKind
    target: str
    done: Done
    overrides: tuple[OverrideReport, ...]
    """Those that were made, changed or ended."""
    in_the_way: tuple[str, ...]
    """Why it does not do what it says, or not all of it."""
    held_by: tuple[HoldReport, ...]
    """What else holds the target, or the pool of an Inference."""

    @property
    def still_held(self) -> bool:
        """Whether something holds it that was not ended here."""
        return bool(self.held_by)

    def lines(self, *, wide: bool) -> Iterator[str]:
        """`wide` has who wrote the override as well, where the API server says so."""
        if self.done is Done.NOTHING_TO_END:
            yield f"{self.target_kind} {self.target}: this command has made no ComputeOverride, nothing to end"
        for each in self.overrides:
            by = f" by {each.author}" if wide and each.author else ""
            ended = "ended " if self.done is Done.ENDED else ""
            until = f"until {timestamp(each.until)}: {each.reason}"
            what = _DOES[each.action].format(each.replicas)
            yield f"{self.target_kind} {self.target}: {ended}ComputeOverride {each.name}{by}, {what} {until}"
        for said in self.in_the_way:
            yield f"  in the way: {said}"
        for hold in self.held_by:
            yield f"  held as well: {hold.said}"

    def names(self) -> Iterator[str]:
        """The overrides'."""
        return (named(ComputeOverride.KIND, each.name) for each in self.overrides)


_DOES: Final[Mapping[OverrideAction, str]] = {
    OverrideAction.HOLD: "hold",
    OverrideAction.PIN: "pin to {} replicas",
    OverrideAction.FLOOR: "floor of {} replicas",
}


def override_name(action: OverrideAction, kind: OverrideKind, key: ObjectKey) -> str:
    """The name of the one override of its sort about a target: who asks again changes it, and makes no second one."""
    # Kinds have names of their own: neither namespaces nor names have dots, and what has one gets a hash.
    whole = key.name if kind is OverrideKind.COMPUTE_POOL else f"{key.namespace}.{key.name}"
    return child_name(action.value.lower(), whole)


def plan_steering(seen: Steered, wanted: Wanted) -> Step:
    """The override to write.

    Raises PermanentError or ValueError for what cannot be, with the way out.
    """
    _check(seen, wanted)
    lasting = _lasting(wanted.lasting)
    name = override_name(wanted.action, seen.kind, seen.key)
    existing = seen.own(wanted.action)
    alive = existing is not None and existing.ends > seen.now
    until, shortened = _end(seen.now + lasting, existing if alive else None)
    # null takes a field away where the override is there already, whatever somebody made of it.
    spec: dict[str, Any] = {
        "pin": None if wanted.pin is None else {"replicas": wanted.pin},
        "floor": None if wanted.floor is None else {"replicas": wanted.floor},
        "hold": wanted.action is OverrideAction.HOLD,
        "reason": wanted.reason,
        "expiresAt": timestamp(until),
    }
    if existing is not None and alive:
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
    ComputeOverride.parse(body)  # says what is wrong before anything is sent
    return Step(body, ended=existing)


def told(seen: Steered, step: Step, written: ComputeOverride) -> SteeringReport:
    """What came of it. `seen` is from before; `written` is what the API server stored."""
    shortened = (step.shortened,) if step.shortened else ()
    others = [each for each in seen.in_force if each.metadata.name != written.metadata.name]
    return SteeringReport(
        target_kind=seen.kind,
        target=str(seen.key),
        done=Done.MADE if step.existing is None else Done.CHANGED,
        overrides=(OverrideReport.of(written),),
        in_the_way=(*shortened, *_of_mode(seen), *_of_range(seen, written), *_of_others(written, others)),
        held_by=_holds(seen, but=(written.metadata.name,)),
    )


def plan_end(seen: Steered, *actions: OverrideAction) -> tuple[ComputeOverride, ...]:
    """What these commands made about the target, whether it has ended or not."""
    return tuple(each for each in map(seen.own, actions) if each is not None)


def told_end(seen: Steered, ended: Sequence[ComputeOverride]) -> SteeringReport:
    """What came of ending them."""
    return SteeringReport(
        target_kind=seen.kind,
        target=str(seen.key),
        done=Done.ENDED if ended else Done.NOTHING_TO_END,
        overrides=tuple(OverrideReport.of(each) for each in ended),
        in_the_way=(*_of_mode(seen), *_left(seen, ended)),
        held_by=_holds(seen, but=tuple(each.metadata.name for each in ended)),
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
    lasting = parse_duration(text)
    if not _SHORTEST <= lasting <= LONGEST:
        shortest, longest = format_duration(_SHORTEST), format_duration(LONGEST)
        message = f"--for {text}: an override lasts from {shortest} to {longest}"
        raise PermanentError(message)
    return lasting


def _end(asked: datetime, existing: ComputeOverride | None) -> tuple[datetime, str]:
    """When it is to end, in whole seconds, and why not when it was asked for: a change makes no override younger."""
    made = existing.metadata.creation_timestamp if existing is not None else None
    # Cut and not rounded up: the API server cuts when it was made, and counts from there.
    until = asked.replace(microsecond=0)
    if existing is None or made is None or until <= made + LONGEST:
        return until, ""
    said = (
        f"ComputeOverride {existing.metadata.name} was made at {timestamp(made)}, and none lasts longer than "
        f"{format_duration(LONGEST)}: end it and make it anew for more"
    )
    return made + LONGEST, said


def _of_mode(seen: Steered) -> Iterator[str]:
    if seen.pool is None and seen.inference is not None:
        placement = seen.inference.spec.placement
        yield f"there is no ComputePool {placement.pool if placement is not None else ''}, whose allocator would decide"
    elif seen.pool is not None and seen.pool.spec.policy.mode is PolicyMode.RECOMMEND_ONLY:
        yield f"ComputePool {seen.pool.key} is in mode RecommendOnly: decisions are written, and nothing moves"


def _of_range(seen: Steered, written: ComputeOverride) -> Iterator[str]:
    scaling = seen.inference.spec.scaling if seen.inference is not None else None
    amount = written.spec.pin or written.spec.floor
    if scaling is None or amount is None:
        return
    least, most, count = scaling.min_replicas, scaling.max_replicas, amount.replicas
    if not least <= count <= most:
        counts = min(max(count, least), most)
        yield f"spec.scaling of Inference {seen.key} is {least} to {most}: {count} counts as {counts}"


def _of_others(written: ComputeOverride, others: Sequence[ComputeOverride]) -> Iterator[str]:
    """Of pins and holds the newest counts, and before floors."""
    exact = [each for each in others if each.spec.floor is None]
    if not exact:
        return
    newest = exact[-1]
    if written.spec.floor is not None:
        yield f"{described(newest)}; pins and holds count before floors"
    elif _made(newest) > _made(written):
        yield f"{described(newest)}; it is newer, and the newest pin or hold counts"


def _left(seen: Steered, ended: Sequence[ComputeOverride]) -> Iterator[str]:
    names = {each.metadata.name for each in ended}
    for each in seen.in_force:
        if each.metadata.name not in names and not each.spec.hold:
            yield f"{described(each)}; {_way_out(each, seen)}"


def _holds(seen: Steered, *, but: Sequence[str]) -> tuple[HoldReport, ...]:
    found = [*holds_of(seen.in_force)] if seen.inference is not None else []
    if seen.pool is not None:
        found += holds_of_pool(seen.pool, seen.overrides, seen.now)
    return tuple(each for each in found if each.name is None or each.name not in but)


def _way_out(override: ComputeOverride, seen: Steered) -> str:
    name = override.metadata.name
    if name in {override_name(action, seen.kind, seen.key) for action in OverrideAction}:
        return f"tidegate override {seen.key} --end ends it"
    return f"kubectl delete computeoverride {name} ends it"


def _made(override: ComputeOverride) -> tuple[str, str]:
    made = override.metadata.creation_timestamp
    return (made.isoformat() if made is not None else "", override.metadata.name)

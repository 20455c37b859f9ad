"""Report what `hold`, `override` and `resume` did about a ComputeOverride."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

from tidegate.api.compute_override import ComputeOverride, OverrideAction, OverrideKind
from tidegate.api.compute_pool import PolicyMode
from tidegate.api.conditions import format_timestamp
from tidegate.planning.pools.override_requests import OverrideContext, OverrideWrite, make_override_name
from tidegate.planning.pools.overrides import describe_override, make_age_key
from tidegate.reports.report import Report, format_name
from tidegate.reports.shared import HoldReport, OverrideReport, report_holds, report_pool_holds


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
    dry_run: bool
    """Whether nothing was written, and the report shows what would be."""
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
            suffix = " (dry run)" if self.dry_run else ""
            effect = _EFFECTS[override.action].format(override.replicas)
            yield f"{self.target_kind} {self.target}: {ended}ComputeOverride {override.name}{by}, {effect} {until}{suffix}"
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


def report_applied(
    context: OverrideContext, write: OverrideWrite, written: ComputeOverride, *, dry_run: bool = False
) -> SteeringReport:
    """Report an override that was written, or would be with `dry_run`.

    `context` is from before the write; `written` is what the API server stored or would store.
    """
    shortened = (write.shortened,) if write.shortened else ()
    other_overrides = [
        override for override in context.active_overrides if override.metadata.name != written.metadata.name
    ]
    return SteeringReport(
        dry_run=dry_run,
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


def report_ended(
    context: OverrideContext, ended: Sequence[ComputeOverride], *, dry_run: bool = False
) -> SteeringReport:
    """Report overrides that were ended, or would be with `dry_run`."""
    return SteeringReport(
        dry_run=dry_run,
        target_kind=context.kind,
        target=str(context.key),
        done=OverrideEffect.ENDED if ended else OverrideEffect.NOTHING_TO_END,
        overrides=tuple(OverrideReport.from_override(override) for override in ended),
        warnings=(*_mode_warnings(context), *_remaining_warnings(context, ended)),
        held_by=_other_holds(context, ended_names=tuple(override.metadata.name for override in ended)),
    )


def _mode_warnings(context: OverrideContext) -> Iterator[str]:
    if context.pool is None and context.inference is not None:
        placement = context.inference.spec.placement
        yield f"there is no ComputePool {placement.pool_names if placement is not None else ''} whose allocator could decide"
    elif context.pool is not None and context.pool.spec.policy.mode is PolicyMode.RECOMMEND_ONLY:
        yield f"ComputePool {context.pool.key} is in mode RecommendOnly: decisions are written, and nothing moves"


def _range_warnings(context: OverrideContext, written: ComputeOverride) -> Iterator[str]:
    scaling = context.inference.spec.scaling if context.inference is not None else None
    count = written.spec.replica_count
    if scaling is None or count is None:
        return
    minimum, maximum = scaling.min_replicas, scaling.max_replicas
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
    elif make_age_key(newest) > make_age_key(written):
        yield f"{describe_override(newest)}; it is newer, and the newest pin or hold counts"


def _remaining_warnings(context: OverrideContext, ended: Sequence[ComputeOverride]) -> Iterator[str]:
    names = {override.metadata.name for override in ended}
    for override in context.active_overrides:
        if override.metadata.name not in names and not override.spec.hold:
            yield f"{describe_override(override)}; {_describe_end(override, context)}"


def _other_holds(context: OverrideContext, *, ended_names: Sequence[str]) -> tuple[HoldReport, ...]:
    holds = [*report_holds(context.active_overrides)] if context.inference is not None else []
    if context.pool is not None:
        holds += report_pool_holds(context.pool, context.overrides, context.now)
    return tuple(hold for hold in holds if hold.name is None or hold.name not in ended_names)


def _describe_end(override: ComputeOverride, context: OverrideContext) -> str:
    name = override.metadata.name
    if name in {make_override_name(action, context.kind, context.key) for action in OverrideAction}:
        return f"tidegate override {context.key} --end ends it"
    return f"kubectl delete computeoverride {name} ends it"

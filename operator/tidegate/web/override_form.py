"""Prepare the form for an override: the target first, and then what applies to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from tidegate.api.compute_override import OverrideKind
from tidegate.api.durations import parse_duration
from tidegate.api.meta import ObjectKey
from tidegate.errors import TidegateError
from tidegate.web import actions
from tidegate.web.listing import Plural
from tidegate.web.request_context import RequestContext

_LASTINGS: Final[Mapping[str, str]] = {
    "30m": "30 minutes",
    "1h": "1 hour",
    "2h": "2 hours",
    "8h": "8 hours",
    "24h": "1 day",
    "72h": "3 days",
    "168h": "7 days",
}
DEFAULT_LASTING: Final = "30m"
_SUGGESTED: Final = 200
"""Targets that the field for one suggests: with 10,000 Inferences the page would have as many options."""
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ExpiryChoice:
    """A duration to choose, and when an override of that duration ends."""

    lasting: str
    text: str


@dataclass(frozen=True, slots=True)
class OverrideForm:
    """The form for a target; what does not apply to the target is absent."""

    kind: OverrideKind
    key: ObjectKey
    expiries: tuple[ExpiryChoice, ...]
    decided: int | None = None
    """Replicas that the allocator has decided for an Inference."""
    bounds: tuple[int, int] | None = None
    """Least and most replicas of an Inference."""
    typed: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def chosen_action(self) -> str:
        """Return the chosen action."""
        return self.typed.get("action") or "hold"

    @property
    def chosen_lasting(self) -> str:
        """Return the chosen duration."""
        return self.typed.get("lasting") or DEFAULT_LASTING


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """The form for the target of an override, or why there is none."""

    target: str
    """As typed: namespace/name of an Inference, or the name of a ComputePool."""
    form: OverrideForm | None
    message: str = ""


def list_expiries(now: datetime, typed: str = "") -> tuple[ExpiryChoice, ...]:
    """Return the durations to choose from, and the typed one if it is another."""
    choices = [
        ExpiryChoice(lasting, f"{text}, until {_format_end(now, lasting)}")
        for lasting, text in _LASTINGS.items()
    ]
    if typed and typed not in _LASTINGS:
        choices.append(ExpiryChoice(typed, typed))
    return tuple(choices)


def _format_end(now: datetime, lasting: str) -> str:
    duration = parse_duration(lasting)
    return f"{now + duration:%H:%M UTC}" if duration < _DAY else f"{now + duration:%b %d, %H:%M UTC}"


def read_target(fields: Mapping[str, str]) -> str:
    """Return the target in the fields of a form: that of the picker, or of an override."""
    target = fields.get("target", "").strip()
    if target or not fields.get("name"):
        return target
    namespace = "" if fields.get("kind") == OverrideKind.COMPUTE_POOL else fields.get("namespace", "").strip()
    return f"{namespace}/{fields['name']}" if namespace else fields["name"]


async def choose_target(context: RequestContext, fields: Mapping[str, str]) -> TargetChoice:
    """Return the form for the target that was typed; no form without one, or if it cannot be overridden."""
    target = read_target(fields)
    if not target:
        return TargetChoice("", None)
    namespace, _, name = target.rpartition("/")
    try:
        form = await make_form(context, ObjectKey(namespace, name), fields)
    except TidegateError as error:
        return TargetChoice(target, None, str(error))
    if form is None:
        return TargetChoice(
            target,
            None,
            f"Inference {target} has no spec.scaling: the allocator decides nothing about it. Change spec.replicas.",
        )
    return TargetChoice(target, form)


async def make_form(context: RequestContext, key: ObjectKey, typed: Mapping[str, str]) -> OverrideForm | None:
    """Return the form for an Inference, or for a ComputePool if the key has no namespace.

    None if the allocator does not decide about the Inference. Raises ForbiddenError or ObjectNotFoundError.
    """
    expiries = list_expiries(context.app.now(), typed.get("lasting", ""))
    if not key.namespace:
        await context.read_object(context.app.fleet.pools, key)
        return OverrideForm(OverrideKind.COMPUTE_POOL, key, expiries, typed=typed)
    inference = await context.read_object(context.app.fleet.inferences, key)
    scaling = inference.spec.scaling
    if scaling is None or not actions.is_overridable(inference):
        return None
    return OverrideForm(
        OverrideKind.INFERENCE,
        key,
        expiries,
        inference.decided_replicas,
        (scaling.min_replicas, scaling.max_replicas),
        typed,
    )


async def suggest_targets(context: RequestContext) -> Sequence[str]:
    """Return targets that the user may list: pools, and Inferences whose replicas the allocator decides."""
    fleet, rights = context.app.fleet, context.app.rights
    listing = context.app.listings[Plural.INFERENCES]
    within = await rights.filter_namespaces(context.identity, Plural.INFERENCES, listing.list_namespaces())
    may_pools = await rights.filter_namespaces(context.identity, Plural.POOLS, ("",))
    pools = [pool.metadata.name for pool in fleet.pools.list_all()] if may_pools is None or may_pools else []
    inferences = (
        str(inference.key)
        for inference in fleet.inferences.list_all()
        if actions.is_overridable(inference) and (within is None or inference.key.namespace in within)
    )
    return (*pools[:_SUGGESTED], *islice(inferences, _SUGGESTED))

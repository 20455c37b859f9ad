"""Report each object of ours as a row: with the columns of its kind for `tidegate get`, with common ones for the dashboard."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar, Final, Literal, Self, TypeAlias, TypedDict

from tidegate.api.allocation_decision import AllocationDecision, DecisionTrigger
from tidegate.api.compute_override import ComputeOverride, OverrideAction
from tidegate.api.compute_pool import ComputePool, PolicyMode, SliceCounts, TierUsage
from tidegate.api.conditions import format_timestamp
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference, Tier
from tidegate.api.messages.catalogue import messages_by_name
from tidegate.api.meta import ApiModel, CustomResource
from tidegate.api.model_access import ModelAccess
from tidegate.api.release_commands import ReleasePhase
from tidegate.planning.pools.overrides import describe_override
from tidegate.reports.decision import DecisionReport, OutcomeState
from tidegate.reports.report import format_count
from tidegate.reports.shared import OverrideReport, format_tier_slices
from tidegate.reports.state import ObjectReport, ObjectState, StatefulObject

_MESSAGES: Final = messages_by_name()
_HASH: Final = 12


class ObjectRow(ApiModel):
    """The fields that every row has."""

    HEAD: ClassVar[tuple[str, ...]] = ()
    WIDE: ClassVar[tuple[str, ...]] = ()

    namespace: str | None
    name: str
    made: datetime | None

    @abstractmethod
    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""

    @abstractmethod
    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""

    @property
    def rank(self) -> int:
        """Return the rank of the state; a lower one is worse."""
        return 0


class StateRow(ObjectRow):
    """A row of an object with a state."""

    state: ObjectState
    reason: str
    message: str

    @property
    def rank(self) -> int:
        """Return the rank of the state."""
        return self.state.rank

    def explanation(self) -> str:
        """Return reason and message in one line."""
        return " ".join(f"{self.reason}: {self.message}".split())


class InferenceRow(StateRow):
    """One Inference."""

    HEAD: ClassVar[tuple[str, ...]] = ("STATE", "READY", "VERSION", "TIER", "POOL", "REASON")
    WIDE: ClassVar[tuple[str, ...]] = ("MODEL", "TARGET", "SPARES", "SLICES", "WHY")

    kind: Literal["Inference"] = "Inference"
    model: str
    version: str | None
    """The version that answers requests."""
    target_version: str
    tier: Tier
    ready: int
    decided: int
    spares: int
    pool: str | None
    slices: int | None
    """Of each replica."""

    @classmethod
    def from_inference(cls, inference: Inference) -> Self:
        """Return the row of an Inference."""
        placement = inference.spec.placement
        return cls(
            **_state_fields(inference),
            model=inference.served_name,
            version=inference.status.versions.serving,
            target_version=inference.spec.model.version,
            tier=inference.spec.tier,
            ready=inference.status.ready_replicas,
            decided=inference.decided_replicas,
            spares=inference.decided_spares,
            pool=placement.pool_names if placement is not None else None,
            slices=placement.slices if placement is not None else None,
        )

    @property
    def ready_text(self) -> str:
        """Return the ready pods of the desired ones; both include warm spares."""
        return f"{self.ready}/{self.decided + self.spares}"

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        version = self.version or "-"
        if self.version != self.target_version:
            version = f"{version}->{self.target_version}"
        return self.state.value, self.ready_text, version, self.tier.value, self.pool or "-", self.reason

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        return (
            self.model,
            self.target_version,
            str(self.spares),
            format_count(self.slices),
            self.explanation(),
        )


class AccessRow(StateRow):
    """One ModelAccess."""

    HEAD: ClassVar[tuple[str, ...]] = ("STATE", "ROUTES", "RELEASE", "PROGRAMMED", "REASON")
    WIDE: ClassVar[tuple[str, ...]] = ("URL", "GRPC", "WHY")

    kind: Literal["ModelAccess"] = "ModelAccess"
    routes: int
    release: ReleasePhase | None
    released: str | None
    """The Inference that the release moves traffic to."""
    weight: int | None
    """The Inference's effective share, in percent."""
    programmed: bool
    """Whether every gateway runs the present generation."""
    url: str | None
    grpc_target: str | None

    @classmethod
    def from_access(cls, access: ModelAccess) -> Self:
        """Return the row of a ModelAccess."""
        status, release = access.status, access.status.release
        return cls(
            **_state_fields(access),
            routes=len(access.spec.routes),
            release=release.phase if release is not None else None,
            released=access.spec.release.target if access.spec.release is not None else None,
            weight=release.weight if release is not None else None,
            programmed=access.is_programmed,
            url=status.url,
            grpc_target=status.grpc_target,
        )

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        release = "-" if self.release is None else f"{self.released} {self.weight}% {self.release}"
        programmed = "yes" if self.programmed else "no"
        return self.state.value, str(self.routes), release, programmed, self.reason

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        return self.url or "-", self.grpc_target or "-", self.explanation()


class FeatureRow(StateRow):
    """One FeatureCompute."""

    HEAD: ClassVar[tuple[str, ...]] = ("STATE", "READY", "FEATURES", "REASON")
    WIDE: ClassVar[tuple[str, ...]] = ("PLAN", "WHY")

    kind: Literal["FeatureCompute"] = "FeatureCompute"
    ready: int
    replicas: int
    features: int
    plan_hash: str | None

    @classmethod
    def from_features(cls, features: FeatureCompute) -> Self:
        """Return the row of a FeatureCompute."""
        return cls(
            **_state_fields(features),
            ready=features.status.ready_replicas,
            replicas=features.spec.replicas,
            features=len(features.spec.features),
            plan_hash=features.status.plan_hash,
        )

    @property
    def ready_text(self) -> str:
        """Return the ready replicas of the desired ones."""
        return f"{self.ready}/{self.replicas}"

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        return self.state.value, self.ready_text, str(self.features), self.reason

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        return self.plan_hash or "-", self.explanation()


class PoolRow(StateRow):
    """One ComputePool."""

    HEAD: ClassVar[tuple[str, ...]] = ("STATE", "MODE", "NODES", "SLICES", "HEALTHY", "FREE", "REASON")
    WIDE: ClassVar[tuple[str, ...]] = (*(tier.upper() for tier in Tier), "DECISION", "WHY")

    kind: Literal["ComputePool"] = "ComputePool"
    mode: PolicyMode
    nodes: int
    slices: SliceCounts
    tiers: tuple[TierUsage, ...]
    decision: str | None
    """The newest AllocationDecision."""

    @classmethod
    def from_pool(cls, pool: ComputePool) -> Self:
        """Return the row of a ComputePool."""
        status = pool.status
        return cls(
            **_state_fields(pool),
            mode=pool.effective_mode,
            nodes=status.nodes,
            slices=status.slices,
            tiers=status.ordered_tiers,
            decision=status.last_decision,
        )

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        counts = (self.nodes, self.slices.total, self.slices.healthy, self.slices.free)
        return self.state.value, self.mode.value, *map(str, counts), self.reason

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        return *format_tier_slices(self.tiers), self.decision or "-", self.explanation()


class OverrideRow(ObjectRow):
    """One ComputeOverride."""

    HEAD: ClassVar[tuple[str, ...]] = ("TARGET", "DOES", "UNTIL", "AUTHOR")
    WIDE: ClassVar[tuple[str, ...]] = ("REASON",)

    kind: Literal["ComputeOverride"] = "ComputeOverride"
    override: OverrideReport

    @classmethod
    def from_override(cls, override: ComputeOverride) -> Self:
        """Return the row of a ComputeOverride."""
        return cls(**_key_fields(override), override=OverrideReport.from_override(override))

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        override = self.override
        does = override.action.value
        if override.action is not OverrideAction.HOLD:
            does = f"{does} {override.replicas}"
        return (
            f"{override.target_kind} {override.target}",
            does,
            format_timestamp(override.until),
            override.author or "-",
        )

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        return (" ".join(self.override.reason.split()),)


class DecisionRow(ObjectRow):
    """One AllocationDecision, in short; `tidegate history` has all of it."""

    HEAD: ClassVar[tuple[str, ...]] = ("POOL", "AT", "MODE", "TRIGGER", "MOVES", "OUTCOME")
    WIDE: ClassVar[tuple[str, ...]] = ("BINDING",)

    kind: Literal["AllocationDecision"] = "AllocationDecision"
    pool: str
    at: datetime
    mode: PolicyMode
    trigger: DecisionTrigger | None
    moves: int
    outcome: OutcomeState
    result: str
    binding: tuple[str, ...]

    @classmethod
    def from_decision(cls, decision: AllocationDecision) -> Self:
        """Return the row of an AllocationDecision."""
        report = DecisionReport.from_decision(decision)
        return cls(
            **_key_fields(decision),
            pool=report.pool,
            at=report.at,
            mode=report.mode,
            trigger=report.trigger,
            moves=report.move_count,
            outcome=report.outcome.state,
            result=report.describe_outcome(),
            binding=tuple(rule.constraint for rule in report.binding),
        )

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        trigger = self.trigger.value if self.trigger is not None else "-"
        return self.pool, format_timestamp(self.at), self.mode.value, trigger, str(self.moves), self.result

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        return ("; ".join(self.binding) or "-",)


AnyRow: TypeAlias = InferenceRow | AccessRow | FeatureRow | PoolRow | OverrideRow | DecisionRow


def build_row(resource: CustomResource) -> AnyRow:
    """Return the row of an object of ours. Raises KeyError for another kind, which is a bug."""
    match resource:
        case Inference():
            return InferenceRow.from_inference(resource)
        case ModelAccess():
            return AccessRow.from_access(resource)
        case FeatureCompute():
            return FeatureRow.from_features(resource)
        case ComputePool():
            return PoolRow.from_pool(resource)
        case ComputeOverride():
            return OverrideRow.from_override(resource)
        case AllocationDecision():
            return DecisionRow.from_decision(resource)
        case _:
            raise KeyError(resource.KIND)


ROWS: Final[Mapping[str, tuple[type[CustomResource], type[AnyRow]]]] = {
    Inference.KIND: (Inference, InferenceRow),
    ModelAccess.KIND: (ModelAccess, AccessRow),
    FeatureCompute.KIND: (FeatureCompute, FeatureRow),
    ComputePool.KIND: (ComputePool, PoolRow),
    ComputeOverride.KIND: (ComputeOverride, OverrideRow),
    AllocationDecision.KIND: (AllocationDecision, DecisionRow),
}
"""Our kinds, and the row of each."""


class ListRow(ApiModel):
    """One object in a list of the dashboard: the columns that all kinds share."""

    namespace: str
    name: str
    state: ObjectState
    reason: str
    code: str
    """The code of the message; empty for a healthy object."""
    message: str
    detail: str
    """The most important fact for the kind: the version, the weights, the plan."""
    tier: str = ""
    pool: str = ""
    replicas: str = ""
    requests_per_second: float | None = None
    """Requests per second of the last minute; absent if unknown."""
    latency_p99_ms: float | None = None


def build_list_row(resource: CustomResource) -> ListRow:
    """Return the row of an object of ours in the dashboard's lists. Raises KeyError for another kind, which is a bug."""
    match resource:
        case Inference():
            row, versions = InferenceRow.from_inference(resource), resource.status.versions
            swap = f" → {versions.target}" if versions.target and versions.target != row.version else ""
            detail = f"version {row.version or 'none'}{swap}"
            tier, pool = row.tier.value, row.pool or ""
            return _make_list_row(resource, row, detail, row.ready_text, tier=tier, pool=pool)
        case ModelAccess():
            routes = "; ".join(
                f"{route.name}: "
                + ", ".join(f"{target.inference} {target.weight}" for target in route.targets)
                for route in resource.status.routes
            )
            report = ObjectReport.from_object(resource)
            return _make_list_row(resource, report, routes, "all" if resource.is_programmed else "not all")
        case FeatureCompute():
            features = FeatureRow.from_features(resource)
            detail = f"{features.features} features, plan {(features.plan_hash or 'none')[:_HASH]}"
            return _make_list_row(resource, features, detail, features.ready_text)
        case ComputePool():
            slices = resource.status.slices
            used = ", ".join(f"{tier.name} {tier.slices}" for tier in resource.status.ordered_tiers)
            report = ObjectReport.from_object(resource)
            return _make_list_row(
                resource, report, used or "no slices assigned", f"{slices.assigned}/{slices.healthy}"
            )
        case ComputeOverride():
            report = ObjectReport.from_object(resource)
            return _make_list_row(resource, report, describe_override(resource))
        case AllocationDecision():
            # A decision has no conditions; its outcome is its state.
            decision = DecisionRow.from_decision(resource)
            failed = decision.outcome is OutcomeState.GIVEN_UP
            return ListRow(
                namespace="",
                name=decision.name,
                state=ObjectState.NOT_READY if failed else ObjectState.READY,
                reason=decision.outcome.value,
                code="",
                message=decision.result,
                detail=f"{decision.moves} moves",
                pool=decision.pool,
            )
        case _:
            raise KeyError(resource.KIND)


def _make_list_row(
    resource: CustomResource,
    report: ObjectReport | StateRow,
    detail: str,
    replicas: str = "",
    *,
    tier: str = "",
    pool: str = "",
) -> ListRow:
    message = None if report.state.healthy else _MESSAGES.get(report.reason)
    return ListRow(
        namespace=resource.key.namespace,
        name=resource.key.name,
        state=report.state,
        reason=report.reason,
        code="" if message is None else message.code,
        message=report.message,
        detail=detail,
        replicas=replicas,
        tier=tier,
        pool=pool,
    )


class _KeyFields(TypedDict):
    namespace: str | None
    name: str
    made: datetime | None


class _StateFields(_KeyFields):
    state: ObjectState
    reason: str
    message: str


def _key_fields(resource: CustomResource) -> _KeyFields:
    metadata = resource.metadata
    return {
        "namespace": metadata.namespace or None,
        "name": metadata.name,
        "made": metadata.creation_timestamp,
    }


def _state_fields(resource: StatefulObject) -> _StateFields:
    report = ObjectReport.from_object(resource)
    return {
        **_key_fields(resource),
        "state": report.state,
        "reason": report.reason,
        "message": report.message,
    }

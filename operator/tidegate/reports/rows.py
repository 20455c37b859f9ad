"""Report each object of ours as a row: what `tidegate get` lists, kind by kind."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime
from typing import ClassVar, Final, Literal, Self, TypeAlias, TypedDict

from tidegate.api.allocation_decision import AllocationDecision, Trigger
from tidegate.api.compute_override import ComputeOverride
from tidegate.api.compute_pool import ComputePool, PolicyMode, SliceCounts, TierUse
from tidegate.api.conditions import timestamp
from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference, Tier
from tidegate.api.meta import ApiModel, Resource
from tidegate.api.model_access import ModelAccess
from tidegate.api.release import ReleasePhase
from tidegate.reports.decision import DecisionReport, OutcomeState
from tidegate.reports.standing import OverrideAction, OverrideReport
from tidegate.reports.state import ObjectReport, Served, State


class Row(ApiModel):
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
    def badness(self) -> int:
        """Return the rank of the state; a lower one is worse."""
        return 0


class StateRow(Row):
    """A row of an object with a state."""

    state: State
    reason: str
    message: str

    @property
    def badness(self) -> int:
        """Return the rank of the state."""
        return self.state.badness

    def why(self) -> str:
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
    def of(cls, one: Inference) -> Self:
        """Return the row of an Inference."""
        placement = one.spec.placement
        return cls(
            **_state(one),
            model=one.served_name,
            version=one.status.versions.serving,
            target_version=one.spec.model.version,
            tier=one.spec.tier,
            ready=one.status.ready_replicas,
            decided=one.decided_replicas,
            spares=one.decided_spares,
            pool=placement.pool if placement is not None else None,
            slices=placement.slices if placement is not None else None,
        )

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        version = self.version or "-"
        if self.version != self.target_version:
            version = f"{version}->{self.target_version}"
        ready = f"{self.ready}/{self.decided}"
        return self.state.value, ready, version, self.tier.value, self.pool or "-", self.reason

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        return self.model, self.target_version, str(self.spares), _text(self.slices), self.why()


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
    """The Inference's share in effect, in percent."""
    programmed: bool
    """Whether every gateway runs the present generation."""
    url: str | None
    grpc_target: str | None

    @classmethod
    def of(cls, one: ModelAccess) -> Self:
        """Return the row of a ModelAccess."""
        status, release = one.status, one.status.release
        return cls(
            **_state(one),
            routes=len(one.spec.routes),
            release=release.phase if release is not None else None,
            released=one.spec.release.target if one.spec.release is not None else None,
            weight=release.weight if release is not None else None,
            programmed=one.programmed,
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
        return self.url or "-", self.grpc_target or "-", self.why()


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
    def of(cls, one: FeatureCompute) -> Self:
        """Return the row of a FeatureCompute."""
        return cls(
            **_state(one),
            ready=one.status.ready_replicas,
            replicas=one.spec.replicas,
            features=len(one.spec.features),
            plan_hash=one.status.plan_hash,
        )

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        return self.state.value, f"{self.ready}/{self.replicas}", str(self.features), self.reason

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        return self.plan_hash or "-", self.why()


class PoolRow(StateRow):
    """One ComputePool."""

    HEAD: ClassVar[tuple[str, ...]] = ("STATE", "MODE", "NODES", "SLICES", "HEALTHY", "FREE", "REASON")
    WIDE: ClassVar[tuple[str, ...]] = (*(tier.upper() for tier in Tier), "DECISION", "WHY")

    kind: Literal["ComputePool"] = "ComputePool"
    mode: PolicyMode
    nodes: int
    slices: SliceCounts
    tiers: tuple[TierUse, ...]
    decision: str | None
    """The newest AllocationDecision."""

    @classmethod
    def of(cls, one: ComputePool) -> Self:
        """Return the row of a ComputePool."""
        status = one.status
        return cls(
            **_state(one),
            mode=status.mode or one.spec.policy.mode,
            nodes=status.nodes,
            slices=status.slices,
            tiers=status.tiers,
            decision=status.last_decision,
        )

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        counts = (self.nodes, self.slices.total, self.slices.healthy, self.slices.free)
        return self.state.value, self.mode.value, *map(str, counts), self.reason

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        used = {tier.name: tier.slices for tier in self.tiers}
        return (*(str(used.get(tier, 0)) for tier in Tier), self.decision or "-", self.why())


class OverrideRow(Row):
    """One ComputeOverride."""

    HEAD: ClassVar[tuple[str, ...]] = ("TARGET", "DOES", "UNTIL", "AUTHOR")
    WIDE: ClassVar[tuple[str, ...]] = ("REASON",)

    kind: Literal["ComputeOverride"] = "ComputeOverride"
    override: OverrideReport

    @classmethod
    def of(cls, one: ComputeOverride) -> Self:
        """Return the row of a ComputeOverride."""
        return cls(**_key(one), override=OverrideReport.of(one))

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        override = self.override
        does = override.action.value
        if override.action is not OverrideAction.HOLD:
            does = f"{does} {override.replicas}"
        return (
            f"{override.target_kind} {override.target}",
            does,
            timestamp(override.until),
            override.author or "-",
        )

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        return (" ".join(self.override.reason.split()),)


class DecisionRow(Row):
    """One AllocationDecision, in short; `tidegate history` has all of it."""

    HEAD: ClassVar[tuple[str, ...]] = ("POOL", "AT", "MODE", "TRIGGER", "MOVES", "OUTCOME")
    WIDE: ClassVar[tuple[str, ...]] = ("BINDING",)

    kind: Literal["AllocationDecision"] = "AllocationDecision"
    pool: str
    at: datetime
    mode: PolicyMode
    trigger: Trigger | None
    moves: int
    outcome: OutcomeState
    came_to: str
    binding: tuple[str, ...]

    @classmethod
    def of(cls, one: AllocationDecision) -> Self:
        """Return the row of an AllocationDecision."""
        report = DecisionReport.of(one)
        return cls(
            **_key(one),
            pool=report.pool,
            at=report.at,
            mode=report.mode,
            trigger=report.trigger,
            moves=report.move_count,
            outcome=report.outcome.state,
            came_to=report.came_to(),
            binding=tuple(rule.constraint for rule in report.binding),
        )

    def cells(self) -> tuple[str, ...]:
        """Return the cells under HEAD."""
        trigger = self.trigger.value if self.trigger is not None else "-"
        return self.pool, timestamp(self.at), self.mode.value, trigger, str(self.moves), self.came_to

    def wide_cells(self) -> tuple[str, ...]:
        """Return the cells under WIDE."""
        return ("; ".join(self.binding) or "-",)


AnyRow: TypeAlias = InferenceRow | AccessRow | FeatureRow | PoolRow | OverrideRow | DecisionRow


def row_of(one: Resource) -> AnyRow:
    """Return the row of an object of ours. Raises KeyError for another kind, which is a bug."""
    match one:
        case Inference():
            return InferenceRow.of(one)
        case ModelAccess():
            return AccessRow.of(one)
        case FeatureCompute():
            return FeatureRow.of(one)
        case ComputePool():
            return PoolRow.of(one)
        case ComputeOverride():
            return OverrideRow.of(one)
        case AllocationDecision():
            return DecisionRow.of(one)
        case _:
            raise KeyError(one.KIND)


ROWS: Final[Mapping[str, tuple[type[Resource], type[AnyRow]]]] = {
    Inference.KIND: (Inference, InferenceRow),
    ModelAccess.KIND: (ModelAccess, AccessRow),
    FeatureCompute.KIND: (FeatureCompute, FeatureRow),
    ComputePool.KIND: (ComputePool, PoolRow),
    ComputeOverride.KIND: (ComputeOverride, OverrideRow),
    AllocationDecision.KIND: (AllocationDecision, DecisionRow),
}
"""Our kinds, and the row of each."""


class _Key(TypedDict):
    namespace: str | None
    name: str
    made: datetime | None


class _State(_Key):
    state: State
    reason: str
    message: str


def _key(one: Resource) -> _Key:
    metadata = one.metadata
    return {
        "namespace": metadata.namespace or None,
        "name": metadata.name,
        "made": metadata.creation_timestamp,
    }


def _state(one: Served) -> _State:
    report = ObjectReport.of(one)
    return {**_key(one), "state": report.state, "reason": report.reason, "message": report.message}


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)

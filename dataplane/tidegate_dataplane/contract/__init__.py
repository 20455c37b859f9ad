"""What the control plane and the data plane say to each other: one JSON language, readable by old and new alike."""

from tidegate_dataplane.contract.features import (
    Bucketize,
    Cross,
    Entity,
    EntityKeyType,
    Feature,
    FeaturePlan,
    FieldRef,
    Hash,
    Lookup,
    LookupType,
    Table,
)
from tidegate_dataplane.contract.serving import (
    LOAD_TIMEOUT_S,
    AgentReport,
    BatchingMode,
    DesiredState,
    FailureReason,
    ModelFormat,
    OwnerKind,
    Phase,
    VersionFailure,
    VersionMemory,
)
from tidegate_dataplane.contract.tensors import TensorSpec

__all__ = [
    "LOAD_TIMEOUT_S",
    "AgentReport",
    "BatchingMode",
    "Bucketize",
    "Cross",
    "DesiredState",
    "Entity",
    "EntityKeyType",
    "FailureReason",
    "Feature",
    "FeaturePlan",
    "FieldRef",
    "Hash",
    "Lookup",
    "LookupType",
    "ModelFormat",
    "OwnerKind",
    "Phase",
    "Table",
    "TensorSpec",
    "VersionFailure",
    "VersionMemory",
]

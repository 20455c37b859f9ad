"""Problems that no condition shows: of objects together, or of the installation."""

from enum import StrEnum


class ProblemReason(StrEnum):
    """Problems, in CamelCase like reasons."""

    # Found by `tidegate analyze` in objects
    NOT_ANSWERED = "NotAnswered"
    MANIFEST_REFUSED = "ManifestRefused"
    CAPACITY_UNKNOWN = "CapacityUnknown"
    SCALED_TWICE = "ScaledTwice"
    NOBODY_ASKS = "NobodyAsks"
    SINGLE_REPLICA = "SingleReplica"
    TARGET_NOT_REALTIME = "TargetNotRealtime"
    # Found by `tidegate doctor` in the installation
    KIND_MISSING = "KindMissing"
    KIND_OUTDATED = "KindOutdated"
    PROCESS_MISSING = "ProcessMissing"
    PROCESS_NOT_READY = "ProcessNotReady"
    NO_LEADER = "NoLeader"
    VERSIONS_DIFFER = "VersionsDiffer"
    KUBERNETES_TOO_OLD = "KubernetesTooOld"
    POLICY_MISSING = "PolicyMissing"
    CERTIFICATE_ENDS = "CertificateEnds"

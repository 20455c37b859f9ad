"""What can be wrong that no condition says: with an object beside others, or with the installation."""

from enum import StrEnum


class Problem(StrEnum):
    """The closed set; CamelCase, as reasons are."""

    # What `tidegate analyze` sees in objects
    NOT_ANSWERED = "NotAnswered"
    MANIFEST_REFUSED = "ManifestRefused"
    CAPACITY_UNKNOWN = "CapacityUnknown"
    SCALED_TWICE = "ScaledTwice"
    NOBODY_ASKS = "NobodyAsks"
    SINGLE_REPLICA = "SingleReplica"
    TARGET_NOT_REALTIME = "TargetNotRealtime"
    # What `tidegate doctor` sees of the installation
    KIND_MISSING = "KindMissing"
    KIND_OUTDATED = "KindOutdated"
    PROCESS_MISSING = "ProcessMissing"
    PROCESS_NOT_READY = "ProcessNotReady"
    NO_LEADER = "NoLeader"
    VERSIONS_DIFFER = "VersionsDiffer"
    KUBERNETES_TOO_OLD = "KubernetesTooOld"
    POLICY_MISSING = "PolicyMissing"
    CERTIFICATE_ENDS = "CertificateEnds"

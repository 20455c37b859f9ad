"""Messages about what `tidegate analyze` and `tidegate doctor` find and no condition shows."""

from enum import StrEnum
from typing import Final

from tidegate.api.messages.message import CatalogueMessage, MessageLevel


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


MESSAGES: Final = {
    # `tidegate analyze`
    ProblemReason.NOT_ANSWERED: CatalogueMessage(
        "TG5001",
        MessageLevel.WARNING,
        "The status of an object describes an older spec: the controllers have not observed the newest one.",
        "Wait a few seconds; if it stays, run tidegate doctor to see whether the controllers run and have a leader.",
    ),
    ProblemReason.MANIFEST_REFUSED: CatalogueMessage(
        "TG5002",
        MessageLevel.ERROR,
        "The API server would reject a manifest.",
        "Correct the field that the message names; kubectl explain shows what it accepts.",
    ),
    ProblemReason.CAPACITY_UNKNOWN: CatalogueMessage(
        "TG5003",
        MessageLevel.WARNING,
        "An Inference has spec.scaling in a pool, but no spec.capacity, so the allocator moves "
        "nothing for it.",
        "Run tidegate calibrate and apply what it prints, or set spec.capacity by hand.",
    ),
    ProblemReason.SCALED_TWICE: CatalogueMessage(
        "TG5004",
        MessageLevel.ERROR,
        "A HorizontalPodAutoscaler scales an Inference that the allocator scales: its number has no effect.",
        "Delete the autoscaler, or remove spec.scaling and let the autoscaler decide.",
    ),
    ProblemReason.NOBODY_ASKS: CatalogueMessage(
        "TG5005",
        MessageLevel.INFO,
        "No ModelAccess has a real-time Inference as a target, so callers reach it only by its own name, and its traffic "
        "cannot be moved.",
        "Create a ModelAccess with a route to it, or delete the Inference if it is unused.",
    ),
    ProblemReason.SINGLE_REPLICA: CatalogueMessage(
        "TG5006",
        MessageLevel.WARNING,
        "A target of a ModelAccess is a real-time Inference with one replica: if its node fails, it does not serve until "
        "another replica has loaded the model.",
        "Raise spec.replicas or spec.scaling.minReplicas to 2, or give the route a fallback.",
    ),
    ProblemReason.TARGET_NOT_REALTIME: CatalogueMessage(
        "TG5007",
        MessageLevel.ERROR,
        "A target of a ModelAccess is not of tier realtime: its pods work on a stream or a table, "
        "and yield their compute to real-time Inferences.",
        "Route to a real-time Inference of the same model.",
    ),
    # `tidegate doctor`
    ProblemReason.KIND_MISSING: CatalogueMessage(
        "TG9001",
        MessageLevel.ERROR,
        "One of Tidegate's kinds is not installed.",
        "Upgrade the chart that contains the kinds: tidegate with crds.enabled, or tidegate-crds.",
    ),
    ProblemReason.KIND_OUTDATED: CatalogueMessage(
        "TG9002",
        MessageLevel.WARNING,
        "One of Tidegate's kinds has another schema in the cluster than in this command.",
        "Upgrade the chart that contains the kinds (tidegate with crds.enabled, or tidegate-crds) to the version that runs, or use the command of that version.",
    ),
    ProblemReason.PROCESS_MISSING: CatalogueMessage(
        "TG9003",
        MessageLevel.ERROR,
        "A Deployment of Tidegate does not exist.",
        "Install or upgrade the chart; give its namespace with --system-namespace if it is not the one in the message.",
    ),
    ProblemReason.PROCESS_NOT_READY: CatalogueMessage(
        "TG9004",
        MessageLevel.ERROR,
        "Pods of one of Tidegate's Deployments are not ready.",
        "Run the kubectl command in the message, and read the logs of the pods.",
    ),
    ProblemReason.NO_LEADER: CatalogueMessage(
        "TG9005",
        MessageLevel.ERROR,
        "The controllers have no leader, so no object is reconciled. Traffic is not affected.",
        "Look at the controllers' pods and their logs; a standby takes over within 15 seconds.",
    ),
    ProblemReason.VERSIONS_DIFFER: CatalogueMessage(
        "TG9006",
        MessageLevel.WARNING,
        "The installation has another version than this command, which may not support everything in it.",
        "Use the command of the version that runs, or upgrade the installation.",
    ),
    ProblemReason.KUBERNETES_TOO_OLD: CatalogueMessage(
        "TG9007",
        MessageLevel.ERROR,
        "The API server is older than what Tidegate's kinds and policies need.",
        "Upgrade Kubernetes to the version in the message.",
    ),
    ProblemReason.POLICY_MISSING: CatalogueMessage(
        "TG9008",
        MessageLevel.ERROR,
        "An admission policy of the chart does not exist, so requests that it would reject are accepted.",
        "Upgrade the chart with the release's own values; the message names the policy and its purpose.",
    ),
    ProblemReason.CERTIFICATE_ENDS: CatalogueMessage(
        "TG9009",
        MessageLevel.WARNING,
        "A certificate of Tidegate expires soon, or has expired.",
        "Renew the Secret in the message; docs/how-to/certificates.md explains how for Tidegate's own certificates.",
    ),
}

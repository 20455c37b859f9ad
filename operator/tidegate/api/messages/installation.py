"""Messages about the installation, which objects need to be reconciled."""

from typing import Final

from tidegate.api.messages.message import CatalogueMessage, MessageLevel
from tidegate.api.messages.problem import ProblemReason

MESSAGES: Final = {
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
        "Install or upgrade the chart; give its namespace with -n if it is not the one in the message.",
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

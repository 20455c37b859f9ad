"""Messages about the installation, which objects need to be reconciled."""

from typing import Final

from tidegate.api.messages.message import Level, Message
from tidegate.api.messages.problem import Problem

MESSAGES: Final = {
    Problem.KIND_MISSING: Message(
        "TG9001",
        Level.ERROR,
        "One of Tidegate's kinds is not installed.",
        "Upgrade the chart that contains the kinds: tidegate with crds.enabled, or tidegate-crds.",
    ),
    Problem.KIND_OUTDATED: Message(
        "TG9002",
        Level.WARNING,
        "One of Tidegate's kinds has another schema in the cluster than in this command.",
        "Upgrade the chart that contains the kinds (tidegate with crds.enabled, or tidegate-crds) to the version that runs, or use the command of that version.",
    ),
    Problem.PROCESS_MISSING: Message(
        "TG9003",
        Level.ERROR,
        "A Deployment of Tidegate does not exist.",
        "Install or upgrade the chart; give its namespace with -n if it is not the one in the message.",
    ),
    Problem.PROCESS_NOT_READY: Message(
        "TG9004",
        Level.ERROR,
        "Pods of one of Tidegate's Deployments are not ready.",
        "Run the kubectl command in the message, and read the logs of the pods.",
    ),
    Problem.NO_LEADER: Message(
        "TG9005",
        Level.ERROR,
        "The controllers have no leader, so no object is reconciled. Traffic is not affected.",
        "Look at the controllers' pods and their logs; a standby takes over within 15 seconds.",
    ),
    Problem.VERSIONS_DIFFER: Message(
        "TG9006",
        Level.WARNING,
        "The installation has another version than this command, which may not support everything in it.",
        "Use the command of the version that runs, or upgrade the installation.",
    ),
    Problem.KUBERNETES_TOO_OLD: Message(
        "TG9007",
        Level.ERROR,
        "The API server is older than what Tidegate's kinds and policies need.",
        "Upgrade Kubernetes to the version in the message.",
    ),
    Problem.POLICY_MISSING: Message(
        "TG9008",
        Level.ERROR,
        "An admission policy of the chart does not exist, so requests that it would reject are accepted.",
        "Upgrade the chart with the release's own values; the message names the policy and its purpose.",
    ),
    Problem.CERTIFICATE_ENDS: Message(
        "TG9009",
        Level.WARNING,
        "A certificate of Tidegate expires soon, or has expired.",
        "Renew the Secret in the message; docs/how-to/certificates.md explains how for Tidegate's own certificates.",
    ),
}

"""Of the installation: what has to be there before any object can be looked after."""

from typing import Final

from tidegate.api.messages.message import Level, Message
from tidegate.api.messages.problem import Problem

MESSAGES: Final = {
    Problem.KIND_MISSING: Message(
        "TG9001",
        Level.ERROR,
        "The cluster does not know one of Tidegate's kinds.",
        "Upgrade the chart that brings the kinds: tidegate with crds.enabled, or tidegate-crds.",
    ),
    Problem.KIND_OUTDATED: Message(
        "TG9002",
        Level.WARNING,
        "One of Tidegate's kinds has another schema in the cluster than this command knows.",
        "Upgrade the chart that brings the kinds (tidegate with crds.enabled, or tidegate-crds) to the version that runs, or use the command of that version.",
    ),
    Problem.PROCESS_MISSING: Message(
        "TG9003",
        Level.ERROR,
        "A Deployment of Tidegate's is not there.",
        "Install or upgrade the chart; name its namespace with -n if it is another one than the message says.",
    ),
    Problem.PROCESS_NOT_READY: Message(
        "TG9004",
        Level.ERROR,
        "Pods of one of Tidegate's Deployments are not ready.",
        "Run the kubectl command in the message; what the pods say last is in their logs.",
    ),
    Problem.NO_LEADER: Message(
        "TG9005",
        Level.ERROR,
        "No process of the controllers leads, so that no object is looked after. Traffic goes on as it was.",
        "Look at the controllers' pods and their logs; another one takes over within 15 seconds.",
    ),
    Problem.VERSIONS_DIFFER: Message(
        "TG9006",
        Level.WARNING,
        "What runs in the cluster is of another version than this command, which may not know all that is there.",
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
        "An admission policy of the chart is not there, so that what it keeps out is let in.",
        "Upgrade the chart with the release's own values; the message names the policy and what it is for.",
    ),
    Problem.CERTIFICATE_ENDS: Message(
        "TG9009",
        Level.WARNING,
        "A certificate of Tidegate's ends soon, or has ended.",
        "Renew the Secret in the message; docs/how-to/certificates.md says how for those of Tidegate itself.",
    ),
}

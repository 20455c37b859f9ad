"""Messages about the nodes of a ComputePool, and about MPS on them."""

from typing import Final

from tidegate.api.messages.message import NOTHING, Level, Message
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    Reason.POOL_READY: Message(
        "TG4001",
        Level.INFO,
        "The pool has slices that can be assigned.",
        NOTHING,
    ),
    Reason.NODES_HEALTHY: Message(
        "TG4002",
        Level.INFO,
        "Every node of the pool accepts pods.",
        NOTHING,
    ),
    Reason.NODES_UNHEALTHY: Message(
        "TG4003",
        Level.WARNING,
        "Nodes of the pool accept no pods: they are not ready, cordoned, terminating, or have a taint that "
        "the pool does not tolerate. Or some of their GPUs have failed, and the device plugin offers fewer "
        "slices. Those slices are not healthy; pods on them keep running as long as the node allows.",
        "Repair or uncordon the node that the message names, add its taint to spec.tolerations, or look at "
        "the device plugin's logs there.",
    ),
    Reason.NO_NODES: Message(
        "TG4004",
        Level.ERROR,
        "No node has all labels of spec.nodeSelector.",
        "Label a node as the message says, or correct spec.nodeSelector.",
    ),
    Reason.NODES_OVERLAP: Message(
        "TG4005",
        Level.ERROR,
        "A node that this pool selects belongs to an older pool, so nothing is placed in this one.",
        "Change spec.nodeSelector of one of the two pools that the message names.",
    ),
    Reason.SLICE_TOO_LARGE: Message(
        "TG4006",
        Level.ERROR,
        "No healthy node of the pool has capacity for one slice in addition to the pods from outside the pool.",
        "Make spec.slice smaller, or add larger nodes; the message has the figures.",
    ),
    Reason.FLOORS_EXCEED_POOL: Message(
        "TG4007",
        Level.ERROR,
        "The floors of all tiers together are more slices than the pool has, so no tier gets slices that are reserved "
        "for others.",
        "Lower the floors in spec.tiers, or add nodes.",
    ),
    Reason.SHARING_CONFIGURED: Message(
        "TG4008",
        Level.INFO,
        "Every node shares its GPUs as the pool's spec says.",
        NOTHING,
    ),
    Reason.SHARING_NOT_CONFIGURED: Message(
        "TG4009",
        Level.ERROR,
        "A node does not share its GPUs as the pool's spec says, so its slices are not healthy: it has another "
        "configuration of the device plugin, or offers another number of slices.",
        "Run the commands in the message. They drain the node first, because the change restarts MPS for all "
        "pods.",
    ),
    Reason.SHARING_HEALTHY: Message(
        "TG4010",
        Level.INFO,
        "MPS and the device plugin work on every node of the pool.",
        NOTHING,
    ),
    Reason.DAEMON_LOST: Message(
        "TG4011",
        Level.ERROR,
        "The MPS control daemon of a node does not answer, so new processes get no GPU there. Tidegate "
        "restarts the daemon up to three times, and then quarantines the node.",
        "Wait for the restart. If the daemon still does not answer, look at the logs of its pod, which the "
        "message names.",
    ),
    Reason.GPU_FAULT: Message(
        "TG4012",
        Level.WARNING,
        "A process caused a fatal fault on a GPU, which ends all processes on it. MPS accepts new ones when "
        "the last of these has ended. If the fault lasts for a minute, the node is quarantined.",
        "If it lasts, delete the pods of the pool on that node. If it comes back, look for the model that "
        "causes it in the logs of the pods that failed.",
    ),
    Reason.CLIENT_STUCK: Message(
        "TG4013",
        Level.WARNING,
        "A process is still connected to MPS although its pod should have ended, or is gone. It may hold "
        "memory of a slice. If it stays for a minute, the node is quarantined.",
        "End the process on the node; the message has its pid. If it comes back, raise the pod's "
        "terminationGracePeriodSeconds or look at the driver's messages (dmesg).",
    ),
    Reason.ALLOCATABLE_GONE: Message(
        "TG4014",
        Level.ERROR,
        "A node is configured as the pool says, and offers no slices. Running pods go on. If it lasts for "
        "three minutes, the node is quarantined.",
        "Look at the logs of the device plugin's pod on that node, and delete the pod if it hangs.",
    ),
    Reason.ADMISSION_ERRORS: Message(
        "TG4015",
        Level.ERROR,
        "The kubelet of a node refused pods of the pool (UnexpectedAdmissionError), because the device plugin "
        "did not give them their slice. The node is quarantined for ten minutes, so that other nodes get the "
        "pods that replace them.",
        "Look at the logs of the device plugin's pod on that node, and delete the pod if it hangs.",
    ),
    Reason.NODE_AGENT_SILENT: Message(
        "TG4016",
        Level.ERROR,
        "The state of MPS on a node is unknown, because its node agent does not run, does not answer, or "
        "cannot run the control program of MPS. Nothing is done to the node.",
        "Look at the node agent's pod on that node, and check that the controllers reach its port 8444. If it "
        "cannot ask MPS, set nodeAgent.runtimeClassName in the Helm values to the RuntimeClass of the "
        "driver's programs.",
    ),
    Reason.NODE_QUARANTINED: Message(
        "TG4017",
        Level.ERROR,
        "The GPU sharing of a node has a fault that lasts. The taint tidegate.io/sharing keeps new pods off "
        "the node while it lasts.",
        "Repair what the message names. The taint is removed when the fault has gone.",
    ),
}

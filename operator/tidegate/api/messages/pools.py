"""Messages about ComputePools, the allocator, and ComputeOverrides."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    # Pools
    Reason.POOL_READY: CatalogueMessage(
        "TG4001",
        MessageLevel.INFO,
        "The pool has slices that can be assigned.",
        NO_ACTION,
    ),
    Reason.NODES_HEALTHY: CatalogueMessage(
        "TG4002",
        MessageLevel.INFO,
        "Every node of the pool accepts pods.",
        NO_ACTION,
    ),
    Reason.NODES_UNHEALTHY: CatalogueMessage(
        "TG4003",
        MessageLevel.WARNING,
        "Nodes of the pool accept no pods: they are cordoned, terminating or not ready, or have a taint that "
        "the pool does not tolerate. Or some of their GPUs have failed, and the device plugin offers fewer "
        "slices. Those slices are not healthy; pods on them keep running as long as the node allows.",
        "Repair or uncordon the node that the message names, add its taint to spec.tolerations, or look at "
        "the device plugin's logs there.",
    ),
    Reason.NO_NODES: CatalogueMessage(
        "TG4004",
        MessageLevel.ERROR,
        "No node has all labels of spec.nodeSelector.",
        "Label a node as the message says, or correct spec.nodeSelector.",
    ),
    Reason.NODES_OVERLAP: CatalogueMessage(
        "TG4005",
        MessageLevel.ERROR,
        "A node that this pool selects belongs to an older pool, so nothing is placed in this one.",
        "Change spec.nodeSelector of one of the two pools that the message names.",
    ),
    Reason.SLICE_TOO_LARGE: CatalogueMessage(
        "TG4006",
        MessageLevel.ERROR,
        "No healthy node of the pool has capacity for one slice in addition to the pods from outside the pool.",
        "Make spec.slice smaller, or add larger nodes; the message has the figures.",
    ),
    Reason.FLOORS_EXCEED_POOL: CatalogueMessage(
        "TG4007",
        MessageLevel.ERROR,
        "The floors of all tiers together are more slices than the pool has, so no tier gets slices that are reserved "
        "for others.",
        "Lower the floors in spec.tiers, or add nodes.",
    ),
    Reason.SHARING_CONFIGURED: CatalogueMessage(
        "TG4008",
        MessageLevel.INFO,
        "Every node shares its GPUs as the pool's spec says.",
        NO_ACTION,
    ),
    Reason.SHARING_NOT_CONFIGURED: CatalogueMessage(
        "TG4009",
        MessageLevel.ERROR,
        "A node does not share its GPUs as the pool's spec says, so its slices are not healthy: it has another "
        "configuration of the device plugin, or offers another number of slices.",
        "Run the commands in the message. They drain the node first, because the change restarts MPS for all "
        "pods.",
    ),
    Reason.SHARING_HEALTHY: CatalogueMessage(
        "TG4010",
        MessageLevel.INFO,
        "MPS and the device plugin work on every node of the pool.",
        NO_ACTION,
    ),
    Reason.DAEMON_LOST: CatalogueMessage(
        "TG4011",
        MessageLevel.ERROR,
        "The MPS control daemon of a node does not answer, so new processes get no GPU there. Tidegate "
        "restarts the daemon up to three times, and then quarantines the node.",
        "Wait for the restart. If the daemon still does not answer, look at the logs of its pod, which the "
        "message names.",
    ),
    Reason.GPU_FAULT: CatalogueMessage(
        "TG4012",
        MessageLevel.WARNING,
        "A process caused a fatal fault on a GPU, which ends all processes on it. MPS accepts new ones when "
        "the last of these has ended. If the fault lasts for a minute, the node is quarantined.",
        "If it lasts, delete the pods of the pool on that node. If it comes back, look for the model that "
        "causes it in the logs of the pods that failed.",
    ),
    Reason.CLIENT_STUCK: CatalogueMessage(
        "TG4013",
        MessageLevel.WARNING,
        "A process is still connected to MPS although its pod should have ended, or is gone. It may hold "
        "memory of a slice. If it stays for a minute, the node is quarantined.",
        "End the process on the node; the message has its pid. If it comes back, raise the pod's "
        "terminationGracePeriodSeconds or look at the driver's messages (dmesg).",
    ),
    Reason.ALLOCATABLE_GONE: CatalogueMessage(
        "TG4014",
        MessageLevel.ERROR,
        "A node is configured as the pool requires but offers no slices. Running pods are not affected. If it lasts for "
        "three minutes, the node is quarantined.",
        "Look at the logs of the device plugin's pod on that node, and delete the pod if it hangs.",
    ),
    Reason.ADMISSION_ERRORS: CatalogueMessage(
        "TG4015",
        MessageLevel.ERROR,
        "The kubelet of a node rejected pods of the pool (UnexpectedAdmissionError), because the device plugin "
        "did not give them their slice. The node is quarantined for ten minutes, so that other nodes get the "
        "pods that replace them.",
        "Look at the logs of the device plugin's pod on that node, and delete the pod if it hangs.",
    ),
    Reason.NODE_AGENT_SILENT: CatalogueMessage(
        "TG4016",
        MessageLevel.ERROR,
        "The state of MPS on a node is unknown, because its node agent does not run, does not answer, or "
        "cannot run the control program of MPS. Nothing is done to the node.",
        "Look at the node agent's pod on that node, and check that the controllers reach its port 8444. If it "
        "cannot ask MPS, set nodeAgent.runtimeClassName in the Helm values to the RuntimeClass of the "
        "driver's programs.",
    ),
    Reason.NODE_QUARANTINED: CatalogueMessage(
        "TG4017",
        MessageLevel.ERROR,
        "The GPU sharing of a node has a fault that lasts. The taint tidegate.io/sharing keeps new pods off "
        "the node while it lasts.",
        "Repair what the message names. The taint is removed when the fault has gone.",
    ),
    # The allocator
    Reason.NOTHING_TO_MOVE: CatalogueMessage(
        "TG4101",
        MessageLevel.INFO,
        "Every Inference with spec.scaling has its target number of replicas.",
        NO_ACTION,
    ),
    Reason.RECOMMENDED: CatalogueMessage(
        "TG4102",
        MessageLevel.INFO,
        "The allocator would move replicas, but spec.policy.mode is RecommendOnly.",
        "Read status.lastDecision, and set spec.policy.mode: Auto to execute such decisions.",
    ),
    Reason.MOVING: CatalogueMessage(
        "TG4103",
        MessageLevel.INFO,
        "The moves of status.lastDecision are in progress.",
        NO_ACTION,
    ),
    Reason.RULES_NOT_KEPT: CatalogueMessage(
        "TG4104",
        MessageLevel.WARNING,
        "Floors or demand need more slices than the pool or its ceilings allow; the message names the rules that cannot be met.",
        "Do what the message says: add nodes, or lower floors, demand or the number of replicas.",
    ),
    Reason.FREEZE_UNREADABLE: CatalogueMessage(
        "TG4105",
        MessageLevel.ERROR,
        "A window of spec.policy.freeze has an invalid schedule or time zone, or never begins; the pool is "
        "held until it is corrected.",
        "Correct the field that the message names.",
    ),
    Reason.SIGNALS_FRESH: CatalogueMessage(
        "TG4106",
        MessageLevel.INFO,
        "The demand of each Inference is known.",
        NO_ACTION,
    ),
    Reason.SIGNALS_STALE: CatalogueMessage(
        "TG4107",
        MessageLevel.WARNING,
        "The demand of some Inferences is unknown or stale; real-time Inferences keep at "
        "least their present replicas.",
        "Check what the message names: the gateways, or Prometheus.",
    ),
    Reason.DEMAND_FORECAST: CatalogueMessage(
        "TG4108",
        MessageLevel.INFO,
        "The demand of each real-time Inference with spec.scaling is forecast.",
        NO_ACTION,
    ),
    Reason.FORECASTS_PENDING: CatalogueMessage(
        "TG4109",
        MessageLevel.INFO,
        "The history of the demand is being read or evaluated; until then the present rates count.",
        "Wait: it takes minutes.",
    ),
    Reason.HISTORY_TOO_SHORT: CatalogueMessage(
        "TG4110",
        MessageLevel.INFO,
        "Some Inferences have less than a day of history, so the allocator plans for their present rates.",
        "Set controllers.prometheusUrl in the chart's values, so that the history is read from Prometheus, or let a day "
        "pass. If the message names a failure of Prometheus, correct it: the history is read again within ten minutes.",
    ),
    Reason.EVENTS_PLANNED: CatalogueMessage(
        "TG4111",
        MessageLevel.INFO,
        "Every event of spec.policy.events can be read. The message names those that are near or running, or the next one.",
        NO_ACTION,
    ),
    Reason.EVENT_INVALID: CatalogueMessage(
        "TG4112",
        MessageLevel.ERROR,
        "An event of spec.policy.events has an invalid schedule or time zone, ends after the year 9999, or names an Inference "
        "that is not a real-time Inference of this pool with spec.scaling. An invalid event is ignored; an event with a wrong "
        "Inference is ignored for that Inference only. The other events are used.",
        "Correct the field that the message names.",
    ),
    Reason.EVENT_BASELINE_UNKNOWN: CatalogueMessage(
        "TG4113",
        MessageLevel.WARNING,
        "The demand before an event that is near or running is unknown for some Inferences: nothing counts their requests, or "
        "the controllers started during the event and have no history. The event's factor is not applied to them, and they "
        "are not scaled down until the event ends.",
        "Wait for the end of the event, or set a floor with tidegate override. With controllers.prometheusUrl in the chart's "
        "values, controllers that start during an event read the demand before it.",
    ),
    Reason.FORECAST_INVALID: CatalogueMessage(
        "TG4114",
        MessageLevel.ERROR,
        "The time zone of spec.policy.forecast does not exist. Nothing is forecast: the allocator plans for the present rates.",
        "Correct the field that the message names.",
    ),
    # ComputeOverrides
    Reason.OVERRIDDEN: CatalogueMessage(
        "TG4201",
        MessageLevel.INFO,
        "A ComputeOverride is active for this object.",
        "Delete the ComputeOverride to end it earlier.",
    ),
    Reason.OVERRIDE_IN_FORCE: CatalogueMessage(
        "TG4202",
        MessageLevel.INFO,
        "The override is active for its target.",
        NO_ACTION,
    ),
    Reason.OVERRIDE_EXPIRED: CatalogueMessage(
        "TG4203",
        MessageLevel.INFO,
        "The override has expired and has no effect any more.",
        "Delete it, or set a later spec.expiresAt, at most 7 days after its creation; after that, create another override.",
    ),
    Reason.OVERRIDE_WITHOUT_EFFECT: CatalogueMessage(
        "TG4204",
        MessageLevel.WARNING,
        "The override changes nothing: the target's number of replicas is fixed.",
        "Set spec.scaling of the Inference instead of spec.replicas, or change spec.replicas.",
    ),
}

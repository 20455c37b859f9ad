"""Every reason that a condition can carry, with what it means and what to do: the reference page is made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Reason(StrEnum):
    """The closed set of reasons; CamelCase, as kubectl shows them."""

    # Any kind
    RECONCILED = "Reconciled"
    INVALID_SPEC = "InvalidSpec"
    NAME_CONFLICT = "NameConflict"
    CHILD_REFUSED = "ChildRefused"
    PREDECESSOR_DELETING = "PredecessorDeleting"
    # Inference and FeatureCompute: pods
    ALL_REPLICAS_READY = "AllReplicasReady"
    WAITING_FOR_REPLICAS = "WaitingForReplicas"
    SCALED_TO_ZERO = "ScaledToZero"
    ROLLING_OUT = "RollingOut"
    DRAINING = "Draining"
    ROLLED_BACK = "RolledBack"
    POD_FAILING = "PodFailing"
    IMAGE_PULL = "ImagePull"
    NO_CAPACITY = "NoCapacity"
    UNSCHEDULABLE = "Unschedulable"
    # Inference: placement in a pool
    PLACED = "Placed"
    POOL_NOT_FOUND = "PoolNotFound"
    POOL_NOT_READY = "PoolNotReady"
    POOL_FULL = "PoolFull"
    TIER_FULL = "TierFull"
    TOO_MANY_SLICES = "TooManySlices"
    MODEL_NOT_SHAREABLE = "ModelNotShareable"
    SCALING_UNSUPPORTED = "ScalingUnsupported"
    # Inference: versions
    MODEL_LOADED = "ModelLoaded"
    LOADING = "Loading"
    SWAPPING_VERSION = "SwappingVersion"
    AGENT_UNREACHABLE = "AgentUnreachable"
    ARTEFACT_NOT_FOUND = "ArtefactNotFound"
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    ARTEFACT_TOO_LARGE = "ArtefactTooLarge"
    ARTEFACT_INVALID = "ArtefactInvalid"
    URI_NOT_ALLOWED = "UriNotAllowed"
    FORMAT_NOT_ALLOWED = "FormatNotAllowed"
    BACKEND_MISSING = "BackendMissing"
    LOAD_FAILED = "LoadFailed"
    LOAD_TIMED_OUT = "LoadTimedOut"
    SERVER_ENDED = "ServerEnded"
    OUT_OF_MEMORY = "OutOfMemory"
    WARMUP_FAILED = "WarmupFailed"
    FETCH_FAILED = "FetchFailed"
    # Inference: sample log
    SAMPLES_LOGGED = "SamplesLogged"
    SINK_UNREACHABLE = "SinkUnreachable"
    SINK_REFUSED = "SinkRefused"
    SAMPLES_DROPPED = "SamplesDropped"
    SAMPLING_UNSUPPORTED = "SamplingUnsupported"
    # Inference: near-line stream
    CONSUMING = "Consuming"
    STREAM_UNREACHABLE = "StreamUnreachable"
    STREAM_REFUSED = "StreamRefused"
    # Inference: batch
    BATCH_COMPLETE = "BatchComplete"
    SCORING = "Scoring"
    SHARDS_FAILED = "ShardsFailed"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    QUEUED = "Queued"
    EVICTED = "Evicted"
    KUEUE_MISSING = "KueueMissing"
    # ModelAccess
    PROGRAMMED = "Programmed"
    ENDPOINTS_PUBLISHED = "EndpointsPublished"
    WAITING_FOR_PROXIES = "WaitingForProxies"
    NO_PROXIES = "NoProxies"
    PROXY_REJECTED = "ProxyRejected"
    XDS_UNREACHABLE = "XdsUnreachable"
    TARGETS_READY = "TargetsReady"
    TARGET_NOT_FOUND = "TargetNotFound"
    TARGET_NOT_READY = "TargetNotReady"
    SERVED_NAME_MISMATCH = "ServedNameMismatch"
    HOST_CONFLICT = "HostConflict"
    PIPELINE_INVALID = "PipelineInvalid"
    CREDENTIALS_NOT_READABLE = "CredentialsNotReadable"
    CREDENTIALS_INVALID = "CredentialsInvalid"
    CLIENT_AUTHORITY_MISSING = "ClientAuthorityMissing"
    # ModelAccess: release
    STEPPING = "Stepping"
    WAITING_FOR_REQUESTS = "WaitingForRequests"
    WAITING_FOR_MEASUREMENTS = "WaitingForMeasurements"
    UNDECIDED = "Undecided"
    PAUSED = "Paused"
    PROMOTED = "Promoted"
    CHECK_FAILED = "CheckFailed"
    ABORTED = "Aborted"
    # FeatureCompute
    PLAN_COMPILED = "PlanCompiled"
    PLAN_INVALID = "PlanInvalid"
    SOURCES_READY = "SourcesReady"
    SOURCES_LOADING = "SourcesLoading"
    SOURCE_FAILED = "SourceFailed"
    # ComputePool
    POOL_READY = "PoolReady"
    NODES_HEALTHY = "NodesHealthy"
    NODES_UNHEALTHY = "NodesUnhealthy"
    NO_NODES = "NoNodes"
    NODES_OVERLAP = "NodesOverlap"
    SLICE_TOO_LARGE = "SliceTooLarge"
    FLOORS_EXCEED_POOL = "FloorsExceedPool"
    SHARING_CONFIGURED = "SharingConfigured"
    SHARING_NOT_CONFIGURED = "SharingNotConfigured"
    SHARING_HEALTHY = "SharingHealthy"
    DAEMON_LOST = "DaemonLost"
    GPU_FAULT = "GpuFault"
    CLIENT_STUCK = "ClientStuck"
    ALLOCATABLE_GONE = "AllocatableGone"
    ADMISSION_ERRORS = "AdmissionErrors"
    NODE_AGENT_SILENT = "NodeAgentSilent"
    NODE_QUARANTINED = "NodeQuarantined"
    # ComputePool: the allocator
    NOTHING_TO_MOVE = "NothingToMove"
    RECOMMENDED = "Recommended"
    MOVING = "Moving"
    RULES_NOT_KEPT = "RulesNotKept"
    FREEZE_UNREADABLE = "FreezeUnreadable"
    SIGNALS_FRESH = "SignalsFresh"
    SIGNALS_STALE = "SignalsStale"
    # Overrides
    OVERRIDDEN = "Overridden"
    OVERRIDE_IN_FORCE = "OverrideInForce"
    OVERRIDE_EXPIRED = "OverrideExpired"
    OVERRIDE_WITHOUT_EFFECT = "OverrideWithoutEffect"


@dataclass(frozen=True, slots=True)
class ReasonDoc:
    """One row of the reference: what the reason means, and what the reader does about it."""

    meaning: str
    what_to_do: str


_NOTHING: Final = "Nothing."

DOCS: Final[Mapping[Reason, ReasonDoc]] = MappingProxyType(
    {
        Reason.RECONCILED: ReasonDoc("The object is as its spec asks.", _NOTHING),
        Reason.INVALID_SPEC: ReasonDoc(
            "The spec contradicts itself in a way that the CRD could not refuse.",
            "Change the field that the message names.",
        ),
        Reason.NAME_CONFLICT: ReasonDoc(
            "An object that is not ours already has the name of a child that we would create.",
            "Rename this object, or delete the one that the message names.",
        ),
        Reason.CHILD_REFUSED: ReasonDoc(
            "The API server refused one of our child objects, for example by a quota or an admission policy.",
            "Read the API server's own words in the message; raise the quota or change the policy or the spec.",
        ),
        Reason.PREDECESSOR_DELETING: ReasonDoc(
            "A child of a deleted object of the same name is still there, and its name is needed.",
            "Wait; if it stays, look at the finalizers of the object that the message names.",
        ),
        Reason.ALL_REPLICAS_READY: ReasonDoc("Every replica serves the target version.", _NOTHING),
        Reason.WAITING_FOR_REPLICAS: ReasonDoc(
            "Fewer replicas serve than the spec asks.",
            "Wait; if it stays, describe the pods with the label that the message names.",
        ),
        Reason.SCALED_TO_ZERO: ReasonDoc(
            "spec.replicas is 0, so nothing serves.", "Raise spec.replicas to serve again."
        ),
        Reason.ROLLING_OUT: ReasonDoc("Pods are being replaced because their template changed.", "Wait."),
        Reason.DRAINING: ReasonDoc(
            "A pod on its way out finishes its requests before its successor takes its place.", "Wait."
        ),
        Reason.ROLLED_BACK: ReasonDoc(
            "New pods did not become ready within spec.rollout.progressDeadline, so the pods are again of the last "
            "template that was ready, and serve.",
            "Correct what the message names. Any change of the spec but spec.replicas is a new attempt; "
            "setting the spec back ends it.",
        ),
        Reason.IMAGE_PULL: ReasonDoc(
            "A node cannot get a container image.",
            "Read the registry's words in the message; the images are named in the chart's values, under images.",
        ),
        Reason.POD_FAILING: ReasonDoc(
            "A container keeps ending or cannot start, or the process that runs a version ended while it served; "
            "that is loaded anew, and the pod takes no requests meanwhile (ends of models of format Python stay unseen).",
            "Read the message; then kubectl logs of that container, or raise spec.resources if it was killed for memory.",
        ),
        Reason.NO_CAPACITY: ReasonDoc(
            "No node has enough CPU, memory or slices free for a pod; the message says what it asks for and where "
            "the most is free.",
            "Lower spec.resources or spec.replicas, or add nodes; in a rollout, spec.rollout.mode: InPlace needs no "
            "room beside the pods that serve.",
        ),
        Reason.UNSCHEDULABLE: ReasonDoc(
            "No node may take a pod, for another reason than its size: a taint, a cordon, an affinity, a volume claim.",
            "Read the scheduler's words in the message; make the claim, uncordon a node, or correct model.uri.",
        ),
        Reason.MODEL_LOADED: ReasonDoc("Every ready replica has loaded the target version.", _NOTHING),
        Reason.LOADING: ReasonDoc("The first version is being fetched or loaded.", "Wait."),
        Reason.SWAPPING_VERSION: ReasonDoc(
            "The target version is being loaded beside the one that serves.", "Wait; traffic is not affected."
        ),
        Reason.AGENT_UNREACHABLE: ReasonDoc(
            "The agent in a pod did not answer, so what the pod serves is not known.",
            "Wait for the next try; if it stays, check network policies for port 8443 and the agent's logs.",
        ),
        Reason.ARTEFACT_NOT_FOUND: ReasonDoc(
            "There is no model under <uri>/<version>.",
            "Publish the version, or correct model.uri or model.version.",
        ),
        Reason.CHECKSUM_MISMATCH: ReasonDoc(
            "The artefact's SHA-256 is not the one in the spec.",
            "Correct the sha256 if the artefact is right; else find out who replaced it.",
        ),
        Reason.ARTEFACT_TOO_LARGE: ReasonDoc(
            "The artefact is larger than the operator allows.",
            "Make it smaller, or ask whoever runs Tidegate to raise the limit.",
        ),
        Reason.ARTEFACT_INVALID: ReasonDoc(
            "The artefact is not a model of its format: truncated, or with parts outside its folder.",
            "Publish it again; the message says what is wrong.",
        ),
        Reason.URI_NOT_ALLOWED: ReasonDoc(
            "The operator's settings do not allow this URI: its host is not listed, or file: is off.",
            "Use a listed place, or ask whoever runs Tidegate to allow this one.",
        ),
        Reason.FORMAT_NOT_ALLOWED: ReasonDoc(
            "Models of format Python and TorchExport run code of their own, and the operator's settings do not allow it.",
            "Export to ONNX, or ask whoever runs Tidegate to set models.allowPython.",
        ),
        Reason.BACKEND_MISSING: ReasonDoc(
            "The Triton in the pods has no backend for the model's format; it was asked.",
            "Export the model to ONNX, or ask whoever runs Tidegate for a Triton image with that backend "
            "(images.triton).",
        ),
        Reason.LOAD_FAILED: ReasonDoc(
            "Triton refused the model.", "Read Triton's own words in status.failure.message."
        ),
        Reason.LOAD_TIMED_OUT: ReasonDoc(
            "A replica did not finish loading the version in time, or its agent fell silent; the others went back.",
            "Read the log of container triton in the pod that the message names; if its node is lost, delete the pod. "
            "It is tried again by itself, ever more seldom.",
        ),
        Reason.SERVER_ENDED: ReasonDoc(
            "Triton ended twice while it loaded the version, and not at its memory limit: a crash in the model.",
            "Read kubectl logs --previous of container triton; publish a corrected version.",
        ),
        Reason.OUT_OF_MEMORY: ReasonDoc(
            "A version does not fit into the memory of a replica, beside those that it keeps; or a container, or the process that runs a version, was killed at the limit while it served.",
            "Raise spec.resources.memory, keep fewer versions with spec.rollout.keepVersions, publish a smaller one, or send smaller requests.",
        ),
        Reason.WARMUP_FAILED: ReasonDoc(
            "The version was loaded, and answered a warm-up request with an error.",
            "Read the model's own words in status.failure.message; publish a corrected version, or set "
            "spec.rollout.warmup.requests to 0 if the model rightly refuses zeros.",
        ),
        Reason.FETCH_FAILED: ReasonDoc(
            "The artefact could not be fetched: the place did not answer, or refused us.",
            "Check that the place is up and that the pod has the credentials for it.",
        ),
        Reason.SAMPLES_LOGGED: ReasonDoc(
            "Every replica that serves logs its share of the requests.", _NOTHING
        ),
        Reason.SINK_UNREACHABLE: ReasonDoc(
            "The sink of the sample log does not answer or cannot be written. Requests are not affected; samples wait "
            "in a bounded buffer and are then dropped and counted.",
            "Bring the sink back, or correct spec.logging.sink; it is tried again all the time.",
        ),
        Reason.SINK_REFUSED: ReasonDoc(
            "The sink of the sample log answers and refuses: credentials, a permission, a stream that does not exist, "
            "or an address that is not allowed. Requests are not affected.",
            "Do what the message says, or correct spec.logging.sink and its Secret; it is tried again all the time.",
        ),
        Reason.SAMPLES_DROPPED: ReasonDoc(
            "Samples were dropped within the last minute, although the sink works: it is slower than samples come, or "
            "a record is too large.",
            "Lower spec.logging.sample or make the sink faster; tidegate_agent_samples_dropped_total says how many and "
            "why.",
        ),
        Reason.SAMPLING_UNSUPPORTED: ReasonDoc(
            "The Triton image runs ONNX models by a backend of its own, which logs no samples.",
            "Remove spec.logging, or use a Triton image without the onnxruntime backend.",
        ),
        Reason.CONSUMING: ReasonDoc("Every replica that serves takes messages from the stream.", _NOTHING),
        Reason.STREAM_UNREACHABLE: ReasonDoc(
            "The broker of spec.nearline does not answer. Messages wait in the stream, and none is lost.",
            "Bring the broker back, or correct spec.nearline.consume; it is tried again all the time.",
        ),
        Reason.STREAM_REFUSED: ReasonDoc(
            "The broker of spec.nearline answers and refuses: credentials, a permission, a stream, topic, consumer or bucket "
            "that is not there or not as the spec says, or dead letters that nothing takes. Messages wait in the stream.",
            "Do what the message says; it is tried again all the time.",
        ),
        Reason.BATCH_COMPLETE: ReasonDoc(
            "Every shard of the run is done, and its folder of results has _SUCCESS.", _NOTHING
        ),
        Reason.SCORING: ReasonDoc("The run's pods score the table, or are about to.", "Wait."),
        Reason.SHARDS_FAILED: ReasonDoc(
            "A shard of the run cannot be done: its pod said why, and the message repeats it. The others are finished.",
            "Do what the message says; then change spec.batch.run to score the table anew, or delete the Job to go on with "
            "what is there.",
        ),
        Reason.DEADLINE_EXCEEDED: ReasonDoc(
            "The run was not complete when spec.batch.deadline was over, and its pods were ended.",
            "Raise spec.batch.deadline and delete the Job: the run goes on with what is there. More replicas make it shorter.",
        ),
        Reason.QUEUED: ReasonDoc(
            "The Job of a batch waits until Kueue admits it; the message has Kueue's words.",
            "Wait, or give the ClusterQueue more quota; where the message says that a queue does not exist or is stopped, "
            "make or start it.",
        ),
        Reason.EVICTED: ReasonDoc(
            "Kueue has ended the pods of a batch, for example for a Job of higher priority, and its Job waits again. It goes "
            "on after the last file of each shard.",
            "Wait, or read Kueue's words in the message; a Workload that was deactivated waits until it is activated.",
        ),
        Reason.KUEUE_MISSING: ReasonDoc(
            "spec.batch.queueName asks for Kueue, and the cluster does not have Kueue's kinds in a version that is known. "
            "No Job is made.",
            "Install Kueue 0.15 or newer, or remove spec.batch.queueName.",
        ),
        Reason.PROGRAMMED: ReasonDoc("Every connected proxy has accepted this generation.", _NOTHING),
        Reason.ENDPOINTS_PUBLISHED: ReasonDoc("Every connected proxy has its ready endpoints.", _NOTHING),
        Reason.WAITING_FOR_PROXIES: ReasonDoc(
            "Some connected proxies have not accepted this generation, or its ready endpoints, yet.",
            "Wait; usually well under a second.",
        ),
        Reason.NO_PROXIES: ReasonDoc(
            "No proxy is connected, so nobody can call this endpoint.",
            "Check the pods of deployment tidegate-gateway.",
        ),
        Reason.PROXY_REJECTED: ReasonDoc(
            "A proxy refused what this object is for it, and keeps the last good one; other objects go on.",
            "Report it with the message: Tidegate should have refused the spec first. "
            "Where the gateways have a bootstrap of your own, compare it with ours.",
        ),
        Reason.XDS_UNREACHABLE: ReasonDoc(
            "The controllers cannot ask the xDS servers what the proxies run.",
            "Check the pods of deployment tidegate-xds; traffic goes on meanwhile.",
        ),
        Reason.TARGETS_READY: ReasonDoc("Every target with weight has ready endpoints.", _NOTHING),
        Reason.TARGET_NOT_FOUND: ReasonDoc(
            "A target does not exist in this namespace.",
            "Create the Inference or correct the route's target.",
        ),
        Reason.TARGET_NOT_READY: ReasonDoc(
            "A target with weight has no ready endpoint; its share goes to the others where there are any.",
            "Look at that Inference's own conditions.",
        ),
        Reason.SERVED_NAME_MISMATCH: ReasonDoc(
            "The targets serve under different model names, but a client can only ask for one.",
            "Set the same spec.model.name on all of them.",
        ),
        Reason.HOST_CONFLICT: ReasonDoc(
            "An older ModelAccess already has one of these hosts.",
            "Choose another host, or delete the older object.",
        ),
        Reason.PIPELINE_INVALID: ReasonDoc(
            "The models and features of a pipeline do not fit together; what ran before runs on.",
            "Change the model, feature or field that the message names.",
        ),
        Reason.STEPPING: ReasonDoc(
            "The release's target takes its share of this step, and all checks pass so far.", "Wait."
        ),
        Reason.WAITING_FOR_REQUESTS: ReasonDoc(
            "The interval of this step is over, and the target, or the targets that it is compared with, have answered "
            "too few requests to be judged by.",
            "Wait; or lower minRequests of the check, begin with a larger step, or annotate "
            "tidegate.io/release=promote.",
        ),
        Reason.WAITING_FOR_MEASUREMENTS: ReasonDoc(
            "Some gateway, or Prometheus, does not say what it measured, so the release goes no further.",
            "Wait; if it stays, look at the gateway or the query that the message names.",
        ),
        Reason.UNDECIDED: ReasonDoc(
            "The target is above a check's limit, but by so little that it may still be chance.",
            "Wait; more requests decide it. The message has the figures.",
        ),
        Reason.PAUSED: ReasonDoc(
            "The release stands at its step, and is still judged there: the annotation tidegate.io/release says pause.",
            "Wait for whoever paused it, or annotate tidegate.io/release=resume.",
        ),
        Reason.PROMOTED: ReasonDoc(
            "The target passed every step, or a person promoted it; it takes all requests of its route.",
            "Nothing. At the next change write into the spec what is in effect: all weight to the target, no release.",
        ),
        Reason.CHECK_FAILED: ReasonDoc(
            "The release's target failed a check, so that chance is out of the question; with onFailure: Rollback it gets no "
            "requests any more.",
            "Read the figures in the message. After a correction, any change of spec.release or the annotation "
            "tidegate.io/release=restart begins anew.",
        ),
        Reason.ABORTED: ReasonDoc(
            "A person ended the release by the annotation tidegate.io/release=abort; its target gets no requests any more.",
            "Nothing. Any change of spec.release, or the annotation tidegate.io/release=restart, begins anew.",
        ),
        Reason.CREDENTIALS_NOT_READABLE: ReasonDoc(
            "The gateways cannot have what spec.auth names. A Secret does not exist, lacks the label "
            "tidegate.io/auth=gateway, or its namespace is not in the chart's auth.namespaces; an issuer's address (jwksUri) "
            "has a host that is not in auth.jwks.allowedHosts, or has given no keys since the xDS server started. Nobody is "
            "let in meanwhile: calls are answered 503 (gRPC: UNAVAILABLE).",
            "Run the command in the message, or see why the issuer's address gives no keys.",
        ),
        Reason.CREDENTIALS_INVALID: ReasonDoc(
            "Something in the Secret or at the address that spec.auth names cannot be used. Keys that can be used still let their holders "
            "in; where there are none, calls are answered 503 (gRPC: UNAVAILABLE).",
            "Correct the entry that the message names; the message never shows its value.",
        ),
        Reason.CLIENT_AUTHORITY_MISSING: ReasonDoc(
            "spec.auth.mtls asks for client certificates, and the gateways have nothing to check them by: the chart's "
            "gateway.tls.clientAuthority is not set, or its Secret was never good. Nobody is let in meanwhile: calls are "
            "answered 503 (gRPC: UNAVAILABLE).",
            "Have whoever runs Tidegate set it; where it is set, tidegate xds status says what is wrong with the Secret.",
        ),
        Reason.PLAN_COMPILED: ReasonDoc(
            "The features are compiled; status.planHash names the plan.", _NOTHING
        ),
        Reason.PLAN_INVALID: ReasonDoc(
            "The features do not fit together.", "Change the feature or source that the message names."
        ),
        Reason.SOURCES_READY: ReasonDoc("Every replica has read every source.", _NOTHING),
        Reason.SOURCES_LOADING: ReasonDoc("Sources are being read.", "Wait."),
        Reason.SOURCE_FAILED: ReasonDoc(
            "A source could not be read.",
            "Correct the source's table, or publish it; the message has the details.",
        ),
        Reason.PLACED: ReasonDoc("Every replica has its slices.", _NOTHING),
        Reason.POOL_NOT_FOUND: ReasonDoc(
            "There is no ComputePool of the name in spec.placement.pool. Pods that run go on as they are; none is made, "
            "changed or scaled.",
            "Make the pool, or correct spec.placement.pool.",
        ),
        Reason.POOL_NOT_READY: ReasonDoc(
            "The pool in spec.placement.pool takes no pods; the message says why.",
            "Look at the conditions of the ComputePool.",
        ),
        Reason.POOL_FULL: ReasonDoc(
            "The pool has too few slices left for all replicas; those that have their slices run. What the floors keep for "
            "other tiers is not left.",
            "Lower spec.replicas or spec.placement.slices here or elsewhere, lower other tiers' floors, or add nodes to the "
            "pool; the message has the figures.",
        ),
        Reason.TIER_FULL: ReasonDoc(
            "The tier has all slices that its ceiling in the pool allows; replicas that have their slices run.",
            "Lower spec.replicas or spec.placement.slices, or raise the ceiling in the ComputePool's spec.tiers.",
        ),
        Reason.TOO_MANY_SLICES: ReasonDoc(
            "No node of the pool is so large that one replica could have its slices there.",
            "Lower spec.placement.slices to what the message names, and raise spec.replicas instead.",
        ),
        Reason.MODEL_NOT_SHAREABLE: ReasonDoc(
            "The model's format brings processes of its own onto the GPU, and each would have the limits of a whole slice.",
            "Export the model as ONNX or TensorRT, or place it in a pool of CPU slices.",
        ),
        Reason.SCALING_UNSUPPORTED: ReasonDoc(
            "The pool shares its GPUs by claims (backend SharedClaim), and the allocator does not count GPU by GPU.",
            "Set spec.replicas instead of spec.scaling, or place the Inference in a pool with backend DevicePlugin.",
        ),
        Reason.SHARING_CONFIGURED: ReasonDoc("Every node shares its GPUs out as the pool says.", _NOTHING),
        Reason.SHARING_NOT_CONFIGURED: ReasonDoc(
            "A node does not share its GPUs out as the pool says, so its slices are not healthy: it has another "
            "configuration of the device plugin, or offers another number of slices than it should. With backend SharedClaim: "
            "the API server or the node lacks what is needed for it, or a GPU is still shared out as the pool said before.",
            "Run the commands in the message; a node is drained first, since the change restarts MPS under all pods.",
        ),
        Reason.SHARING_HEALTHY: ReasonDoc(
            "MPS and the device plugin work on every node of the pool.", _NOTHING
        ),
        Reason.DAEMON_LOST: ReasonDoc(
            "The MPS control daemon of a node does not answer. New processes get no GPU there, so the node takes no pods, its "
            "pods of the pool are moved away, and the daemon's pod is made anew.",
            "Wait; status.repairs says how far it is. If the node ends up quarantined, see NodeQuarantined.",
        ),
        Reason.GPU_FAULT: ReasonDoc(
            "A process met a fatal fault on a GPU, which ends all processes on it; MPS takes new ones when the last of them has "
            "gone. Their pods are deleted at once, and made anew elsewhere or, when MPS is well, there.",
            "Wait. If it comes back, look for the model that causes it: the server's logs of the pods named in the events.",
        ),
        Reason.CLIENT_STUCK: ReasonDoc(
            "A process is still connected to MPS although its pod should have ended, or is gone. It is ended, and if that "
            "does not help, MPS of that node is started anew.",
            "Wait. If it comes back, raise the pod's terminationGracePeriodSeconds or look at the driver's messages (dmesg).",
        ),
        Reason.ALLOCATABLE_GONE: ReasonDoc(
            "A node that is configured as the pool says offers no slices any more. The pod of the device plugin is made anew; "
            "pods that run go on.",
            "Wait; if the node ends up quarantined, look at the logs of the device plugin there.",
        ),
        Reason.ADMISSION_ERRORS: ReasonDoc(
            "The kubelet of a node refused pods of the pool (UnexpectedAdmissionError), since the device plugin did not give "
            "them their slice. They are deleted, so that others are made; when it goes on, the device plugin's pod is made anew.",
            "Wait; if the node ends up quarantined, look at the logs of the device plugin there.",
        ),
        Reason.NODE_AGENT_SILENT: ReasonDoc(
            "Nothing is known of MPS on a node, since its node agent does not run, does not answer, or "
            "has no control program of MPS that it could ask. Nothing is done to the node.",
            "Look at the node agent's pod on that node, and whether the controllers reach its port 8444. Where it cannot ask "
            "MPS, set nodeAgent.runtimeClassName in the Helm values to the RuntimeClass of the driver's programs.",
        ),
        Reason.NODE_QUARANTINED: ReasonDoc(
            "Repairs of a node were tried three times in vain. It takes no pods of the pool until a person says so.",
            "Repair the node (the message says what failed), then remove the taint with the command in the message.",
        ),
        Reason.POOL_READY: ReasonDoc("The pool has slices that pods can be given.", _NOTHING),
        Reason.NODES_HEALTHY: ReasonDoc("Every node of the pool takes pods.", _NOTHING),
        Reason.NODES_UNHEALTHY: ReasonDoc(
            "Nodes of the pool take no pods: they are not ready, cordoned, on their way out, or have a taint that the pool "
            "does not tolerate. Or some of their GPUs have failed, and the device plugin offers fewer slices. Those slices are "
            "not healthy; what runs there goes on as long as the node lets it.",
            "Repair or uncordon the node that the message names, add its taint to spec.tolerations, or look at the device "
            "plugin's logs there.",
        ),
        Reason.NO_NODES: ReasonDoc(
            "No node has all labels of spec.nodeSelector.",
            "Label a node as the message says, or correct spec.nodeSelector.",
        ),
        Reason.NODES_OVERLAP: ReasonDoc(
            "A node that this pool selects belongs to an older pool, so nothing is placed in this one.",
            "Change spec.nodeSelector of one of the two pools that the message names.",
        ),
        Reason.SLICE_TOO_LARGE: ReasonDoc(
            "No healthy node of the pool has room for one slice beside what runs there from outside the pool.",
            "Make spec.slice smaller, or add larger nodes; the message has the figures.",
        ),
        Reason.FLOORS_EXCEED_POOL: ReasonDoc(
            "The floors of all tiers together are more slices than the pool has, so no tier is given what others are kept.",
            "Lower the floors in spec.tiers, or add nodes.",
        ),
        Reason.NOTHING_TO_MOVE: ReasonDoc(
            "Every Inference with spec.scaling has the replicas that the allocator would give it.", _NOTHING
        ),
        Reason.RECOMMENDED: ReasonDoc(
            "The allocator would move replicas, and spec.policy.mode is RecommendOnly.",
            "Read status.lastDecision, and set spec.policy.mode: Auto to have such decisions carried out.",
        ),
        Reason.MOVING: ReasonDoc("Replicas are on their way to what status.lastDecision says.", _NOTHING),
        Reason.RULES_NOT_KEPT: ReasonDoc(
            "Floors, ceilings or demand ask for more than the pool has, and the message names what was given up.",
            "Do what the message says: add nodes, or lower floors, demand or the number of replicas.",
        ),
        Reason.FREEZE_UNREADABLE: ReasonDoc(
            "A window of spec.policy.freeze is no cron schedule, never comes, or names no time zone; the pool is held.",
            "Correct the field that the message names.",
        ),
        Reason.SIGNALS_FRESH: ReasonDoc("What is asked of each Inference is known.", _NOTHING),
        Reason.SIGNALS_STALE: ReasonDoc(
            "What is asked of some Inferences is not known, or was known only a while ago; real-time ones keep at least "
            "what they have.",
            "Look at what the message names: the gateways, or Prometheus.",
        ),
        Reason.OVERRIDDEN: ReasonDoc(
            "A ComputeOverride decides here until it ends.", "Delete the ComputeOverride to end it earlier."
        ),
        Reason.OVERRIDE_IN_FORCE: ReasonDoc("The override decides about its target.", _NOTHING),
        Reason.OVERRIDE_EXPIRED: ReasonDoc(
            "The override's time is over: it decides nothing any more.",
            "Delete it, or set another spec.expiresAt.",
        ),
        Reason.OVERRIDE_WITHOUT_EFFECT: ReasonDoc(
            "The override's target leaves the allocator nothing to decide: its number of replicas is fixed.",
            "Set spec.scaling of the Inference instead of spec.replicas, or change spec.replicas.",
        ),
    }
)

"""Messages about Inferences: pods, placement, versions, sample log, graphs, streams and batches."""

from typing import Final

from tidegate.api.messages.message import NO_ACTION, CatalogueMessage, MessageLevel
from tidegate.api.reasons import Reason

MESSAGES: Final = {
    # Pods
    Reason.ALL_REPLICAS_READY: CatalogueMessage(
        "TG1101",
        MessageLevel.INFO,
        "Every replica serves the target version.",
        NO_ACTION,
    ),
    Reason.WAITING_FOR_REPLICAS: CatalogueMessage(
        "TG1102",
        MessageLevel.WARNING,
        "Fewer replicas serve than the spec asks.",
        "Wait; if it stays, describe the pods with the label that the message names.",
    ),
    Reason.SCALED_TO_ZERO: CatalogueMessage(
        "TG1103",
        MessageLevel.INFO,
        "spec.replicas is 0, so nothing serves.",
        "Raise spec.replicas to serve again.",
    ),
    Reason.ROLLING_OUT: CatalogueMessage(
        "TG1104",
        MessageLevel.INFO,
        "A rollout replaces the pods because their template changed.",
        "Wait.",
    ),
    Reason.DRAINING: CatalogueMessage(
        "TG1105",
        MessageLevel.INFO,
        "A terminating pod finishes its requests before its replacement starts.",
        "Wait.",
    ),
    Reason.ROLLED_BACK: CatalogueMessage(
        "TG1106",
        MessageLevel.WARNING,
        "New pods did not become ready within spec.rollout.progressDeadline, so the pods were rolled back to the "
        "last template that was ready, and serve.",
        "Correct what the message names. Any change of the spec except spec.replicas starts a new attempt; reverting "
        "the spec ends it.",
    ),
    Reason.POD_FAILING: CatalogueMessage(
        "TG1107",
        MessageLevel.ERROR,
        "A container keeps exiting or cannot start, or the process that runs a version exited while it served; "
        "the version is loaded again, and the pod gets no requests meanwhile (exits of models of format Python are "
        "not detected).",
        "Read the message; then read the logs of that container, or raise spec.resources if it was killed for "
        "memory.",
    ),
    Reason.IMAGE_PULL: CatalogueMessage(
        "TG1108",
        MessageLevel.ERROR,
        "A node cannot get a container image.",
        "Read the registry's error in the message; the images are named in the chart's values, under images.",
    ),
    Reason.NO_CAPACITY: CatalogueMessage(
        "TG1109",
        MessageLevel.ERROR,
        "No node has enough CPU, memory or slices free for a pod; the message shows what the pod requests and where "
        "the most is free.",
        "Lower spec.resources or spec.replicas, or add nodes; in a rollout, spec.rollout.mode: InPlace needs "
        "no capacity in addition to the pods that serve.",
    ),
    Reason.UNSCHEDULABLE: CatalogueMessage(
        "TG1110",
        MessageLevel.ERROR,
        "No node accepts a pod, for another reason than its size: a taint, a cordon, an affinity, a volume "
        "claim.",
        "Read the scheduler's message; create the claim, uncordon a node, or correct model.uri.",
    ),
    # Placement in a ComputePool
    Reason.PLACED: CatalogueMessage(
        "TG1201",
        MessageLevel.INFO,
        "Every replica has its slices.",
        NO_ACTION,
    ),
    Reason.POOL_NOT_FOUND: CatalogueMessage(
        "TG1202",
        MessageLevel.ERROR,
        "A ComputePool in spec.placement does not exist, or is being deleted. Pods that run there keep running; no pod "
        "is created or changed there. Other pools of the list are not affected.",
        "Create the pool, or correct spec.placement.",
    ),
    Reason.POOL_NOT_READY: CatalogueMessage(
        "TG1203",
        MessageLevel.ERROR,
        "The pool in spec.placement accepts no pods; the message has the reason.",
        "Look at the conditions of the ComputePool.",
    ),
    Reason.POOL_FULL: CatalogueMessage(
        "TG1204",
        MessageLevel.WARNING,
        "The pool has too few free slices for all replicas; those with slices run. Slices that floors "
        "reserve for other tiers are not free.",
        "Lower spec.replicas or spec.placement.slices here or elsewhere, lower other tiers' floors, or add "
        "nodes to the pool; the message has the figures.",
    ),
    Reason.TIER_FULL: CatalogueMessage(
        "TG1205",
        MessageLevel.WARNING,
        "The tier has all slices that its ceiling in the pool allows; replicas with slices run.",
        "Lower spec.replicas or spec.placement.slices, or raise the ceiling in the ComputePool's spec.tiers.",
    ),
    Reason.TOO_MANY_SLICES: CatalogueMessage(
        "TG1206",
        MessageLevel.ERROR,
        "No node of the pool has as many slices as one replica needs.",
        "Lower spec.placement.slices to what the message names, and raise spec.replicas instead.",
    ),
    Reason.MODEL_NOT_SHAREABLE: CatalogueMessage(
        "TG1207",
        MessageLevel.ERROR,
        "The model's format starts its own processes on the GPU, and each would have the limits of a "
        "whole slice.",
        "Export the model as ONNX or TensorRT, or place it in a pool of CPU slices.",
    ),
    # Versions
    Reason.MODEL_LOADED: CatalogueMessage(
        "TG1301",
        MessageLevel.INFO,
        "Every ready replica has loaded the target version.",
        NO_ACTION,
    ),
    Reason.LOADING: CatalogueMessage(
        "TG1302",
        MessageLevel.INFO,
        "The first version is being fetched or loaded.",
        "Wait.",
    ),
    Reason.SWAPPING_VERSION: CatalogueMessage(
        "TG1303",
        MessageLevel.INFO,
        "The target version is being loaded beside the one that serves.",
        "Wait; traffic is not affected.",
    ),
    Reason.AGENT_UNREACHABLE: CatalogueMessage(
        "TG1304",
        MessageLevel.WARNING,
        "The agent in a pod did not answer, so the state of the pod is unknown.",
        "Wait for the next attempt; if it stays, check network policies for port 8443 and the agent's logs.",
    ),
    Reason.ARTEFACT_NOT_FOUND: CatalogueMessage(
        "TG1305",
        MessageLevel.ERROR,
        "There is no model under <uri>/<version>.",
        "Publish the version, or correct model.uri or model.version.",
    ),
    Reason.CHECKSUM_MISMATCH: CatalogueMessage(
        "TG1306",
        MessageLevel.ERROR,
        "The artefact's SHA-256 is not the one in the spec.",
        "Correct the sha256 if the artefact is right; otherwise find out who replaced it.",
    ),
    Reason.ARTEFACT_TOO_LARGE: CatalogueMessage(
        "TG1307",
        MessageLevel.ERROR,
        "The artefact is larger than the operator allows.",
        "Make it smaller, or ask your Tidegate administrator to raise the limit.",
    ),
    Reason.ARTEFACT_INVALID: CatalogueMessage(
        "TG1308",
        MessageLevel.ERROR,
        "The artefact is not a model of its format: truncated, or with parts outside its folder.",
        "Publish it again; the message says what is wrong.",
    ),
    Reason.URI_NOT_ALLOWED: CatalogueMessage(
        "TG1309",
        MessageLevel.ERROR,
        "The operator's settings do not allow this URI: its host is not listed, or file: is off.",
        "Use a listed host, or ask your Tidegate administrator to allow this one.",
    ),
    Reason.FORMAT_NOT_ALLOWED: CatalogueMessage(
        "TG1310",
        MessageLevel.ERROR,
        "Models of format Python and TorchExport run their own code, and the operator's settings do not "
        "allow it.",
        "Export to ONNX, or ask your Tidegate administrator to set models.allowPython.",
    ),
    Reason.BACKEND_MISSING: CatalogueMessage(
        "TG1311",
        MessageLevel.ERROR,
        "The Triton in the pods reports that it has no backend for the model's format.",
        "Export the model to ONNX, or ask your Tidegate administrator for a Triton image with that backend "
        "(images.triton).",
    ),
    Reason.LOAD_FAILED: CatalogueMessage(
        "TG1312",
        MessageLevel.ERROR,
        "Triton failed to load the model.",
        "Read Triton's error in status.failure.message.",
    ),
    Reason.LOAD_TIMED_OUT: CatalogueMessage(
        "TG1313",
        MessageLevel.ERROR,
        "A replica did not finish loading the version in time, or its agent stopped answering; the others rolled "
        "back.",
        "Read the log of container triton in the pod that the message names; if its node is lost, delete the "
        "pod. Tidegate retries with backoff.",
    ),
    Reason.SERVER_ENDED: CatalogueMessage(
        "TG1314",
        MessageLevel.ERROR,
        "Triton exited twice while it loaded the version, and not at its memory limit: a crash in the model.",
        "Read kubectl logs --previous of container triton; publish a corrected version.",
    ),
    Reason.OUT_OF_MEMORY: CatalogueMessage(
        "TG1315",
        MessageLevel.ERROR,
        "A version does not fit into the memory of a replica, together with those that it keeps; or a container, or "
        "the process that runs a version, was killed at the limit while it served.",
        "Raise spec.resources.memory, keep fewer versions with spec.rollout.keepVersions, publish a smaller "
        "one, or send smaller requests.",
    ),
    Reason.WARMUP_FAILED: CatalogueMessage(
        "TG1316",
        MessageLevel.ERROR,
        "The version was loaded, and failed a warm-up request.",
        "Read the model's error in status.failure.message; publish a corrected version, or set "
        "spec.rollout.warmup.requests to 0 if the model rightly refuses zeros.",
    ),
    Reason.FETCH_FAILED: CatalogueMessage(
        "TG1317",
        MessageLevel.ERROR,
        "The artefact could not be fetched: the server did not answer, or rejected the request.",
        "Check that the server is up and that the pod has credentials for it.",
    ),
    # Sample log
    Reason.SAMPLES_LOGGED: CatalogueMessage(
        "TG1401",
        MessageLevel.INFO,
        "Every replica that serves logs its share of the requests.",
        NO_ACTION,
    ),
    Reason.SINK_UNREACHABLE: CatalogueMessage(
        "TG1402",
        MessageLevel.ERROR,
        "The sink of the sample log does not answer or cannot be written. Requests are not affected; samples "
        "wait in a bounded buffer and are then dropped and counted.",
        "Bring the sink back, or correct spec.logging.sink; Tidegate keeps retrying.",
    ),
    Reason.SINK_REFUSED: CatalogueMessage(
        "TG1403",
        MessageLevel.ERROR,
        "The sink of the sample log rejects the samples: credentials, a permission, a stream that does not "
        "exist, or an address that is not allowed. Requests are not affected.",
        "Do what the message says, or correct spec.logging.sink and its Secret; Tidegate keeps retrying.",
    ),
    Reason.SAMPLES_DROPPED: CatalogueMessage(
        "TG1404",
        MessageLevel.WARNING,
        "Samples were dropped within the last minute, although the sink works: it is slower than the samples "
        "arrive, or a record is too large.",
        "Lower spec.logging.sample or make the sink faster; tidegate_agent_samples_dropped_total shows how "
        "many and why.",
    ),
    Reason.SAMPLING_UNSUPPORTED: CatalogueMessage(
        "TG1405",
        MessageLevel.ERROR,
        "The Triton image runs ONNX models with its own backend, which logs no samples.",
        "Remove spec.logging, or use a Triton image without the onnxruntime backend.",
    ),
    # Compiled graphs
    Reason.GRAPH_COMPILED: CatalogueMessage(
        "TG1701",
        MessageLevel.INFO,
        "Every replica that serves runs the graph that passes made of the version; status.graph has the passes and the "
        "measured speed-up, and with spec.compile.engine what runs the shapes that come often.",
        NO_ACTION,
    ),
    Reason.GRAPH_UNCHANGED: CatalogueMessage(
        "TG1702",
        MessageLevel.INFO,
        "No graph pass applies to the version and makes it faster; it serves as published. status.graph has the reason "
        "for each pass.",
        "Nothing; or remove spec.compile.",
    ),
    Reason.COMPILING: CatalogueMessage(
        "TG1703",
        MessageLevel.INFO,
        "The version serves as published while its graph is compiled.",
        NO_ACTION,
    ),
    Reason.COMPILE_FAILED: CatalogueMessage(
        "TG1704",
        MessageLevel.WARNING,
        "The graph of the version cannot be compiled, the server does not load the compiled graph, or that graph gave "
        "other answers than the published graph. No request fails: the version serves as published.",
        "Do what the message says, usually raise spec.compile.memory; or remove spec.compile. tidegate optimize does the same "
        "on your own machine.",
    ),
    Reason.REQUESTS_JOINED: CatalogueMessage(
        "TG1801",
        MessageLevel.INFO,
        "Requests that arrive while the model is busy share its next execution, or are on trial for it; the message has an "
        "exception if there is one.",
        NO_ACTION,
    ),
    Reason.REQUESTS_ALONE: CatalogueMessage(
        "TG1802",
        MessageLevel.INFO,
        "batching.mode is Adaptive, and each request is executed alone, because joining would change answers or nothing "
        "could compare them.",
        "Nothing, if the model is fast enough; otherwise do what the message says.",
    ),
    # Near-line streams
    Reason.CONSUMING: CatalogueMessage(
        "TG1501",
        MessageLevel.INFO,
        "Every replica that serves consumes the stream.",
        NO_ACTION,
    ),
    Reason.STREAM_UNREACHABLE: CatalogueMessage(
        "TG1502",
        MessageLevel.ERROR,
        "The broker of a stream does not answer: of spec.nearline of an Inference, or of a source of a FeatureCompute. "
        "Messages wait in the stream, and none is lost.",
        "Bring the broker back, or correct spec.nearline.consume or the source's stream; Tidegate keeps retrying.",
    ),
    Reason.STREAM_REFUSED: CatalogueMessage(
        "TG1503",
        MessageLevel.ERROR,
        "The broker of spec.nearline, or of a source of a FeatureCompute, rejects the connection or its use: credentials, "
        "a permission, a stream, topic, consumer or bucket that does not exist or differs from the spec, or dead letters "
        "that no stream stores. "
        "Messages wait in the stream.",
        "Do what the message says; Tidegate keeps retrying.",
    ),
    Reason.FEATURES_UNAVAILABLE: CatalogueMessage(
        "TG1504",
        MessageLevel.ERROR,
        "The FeatureCompute of spec.nearline.features does not answer. Messages wait in the stream, and none becomes a dead "
        "letter for it.",
        "Look at the FeatureCompute in the message: `tidegate status featurecompute/<name>`; pods ask it again until it answers.",
    ),
    # Batches
    Reason.BATCH_COMPLETE: CatalogueMessage(
        "TG1601",
        MessageLevel.INFO,
        "Every shard of the run is complete, and its folder of results has _SUCCESS.",
        NO_ACTION,
    ),
    Reason.SCORING: CatalogueMessage(
        "TG1602",
        MessageLevel.INFO,
        "The run's pods score the table, or are starting.",
        "Wait.",
    ),
    Reason.SHARDS_FAILED: CatalogueMessage(
        "TG1603",
        MessageLevel.ERROR,
        "A shard of the run has failed; the message has the error of its pod. The other shards are "
        "completed.",
        "Do what the message says; then change spec.batch.run, or spec.backfill.run, to start a new run, or delete the Job to "
        "continue this one.",
    ),
    Reason.DEADLINE_EXCEEDED: CatalogueMessage(
        "TG1604",
        MessageLevel.ERROR,
        "The run was not complete at its deadline (spec.batch.deadline or spec.backfill.deadline), and its pods were deleted.",
        "Raise the deadline and delete the Job to continue the run. More replicas, or more parallelism, make it shorter.",
    ),
    Reason.QUEUED: CatalogueMessage(
        "TG1605",
        MessageLevel.INFO,
        "The Job of a batch waits until Kueue admits it; the message has Kueue's message.",
        "Wait, or give the ClusterQueue more quota; if the message says that a queue does not exist or is "
        "stopped, create or start it.",
    ),
    Reason.EVICTED: CatalogueMessage(
        "TG1606",
        MessageLevel.WARNING,
        "Kueue has evicted the pods of a batch, for example for a Job of higher priority, and its Job is queued "
        "again. It will continue after the last file of each shard.",
        "Wait, or read Kueue's message; a deactivated Workload waits until it is activated.",
    ),
    Reason.KUEUE_MISSING: CatalogueMessage(
        "TG1607",
        MessageLevel.ERROR,
        "spec.batch.queueName needs Kueue, and the cluster does not have Kueue's kinds in a supported version. "
        "No Job is created.",
        "Install Kueue 0.15 or newer, or remove spec.batch.queueName.",
    ),
}

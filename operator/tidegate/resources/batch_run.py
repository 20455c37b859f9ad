"""Name the run of a batch, and locate its results."""

from tidegate.api.backfill import BackfillSpec
from tidegate.api.batch import BatchProgress, BatchSpec
from tidegate.api.inference import Inference
from tidegate.resources.digest import hash_json


def make_run_name(inference: Inference, batch: BatchSpec, plan_hash: str | None = None) -> str:
    """Return the name of the run that the spec asks for: a different name whenever the results could differ.

    `plan_hash` is the hash of the plan of `batch.features`, None without features.
    """
    model = inference.spec.model
    content: dict[str, object] = {
        "uid": inference.metadata.uid,
        "model": [
            model.uri,
            inference.served_name,
            model.version,
            model.revision,
            model.sha256,
            model.format.value,
        ],
        "input": batch.input.model_dump(mode="json"),
        "output": batch.output.model_dump(mode="json"),
        "cut": [batch.shards, inference.spec.batching.max_batch_size],  # how rows become files and requests
        "run": batch.run,
    }
    if batch.features is not None:
        content["features"] = [batch.features.model_dump(mode="json"), plan_hash]
    return f"v{model.version}-{hash_json(content)}"


def find_progress(inference: Inference, batch: BatchSpec) -> BatchProgress | None:
    """Return the recorded progress of the run that the spec asks for; None if the status records another run.

    With features, the run's name is computed with the plan hash that the status records.
    """
    progress = inference.status.batch
    if progress is None or progress.run != make_run_name(inference, batch, progress.plan_hash):
        return None
    return progress


def locate_run_folder(batch: BatchSpec | BackfillSpec, run: str) -> str:
    """Return the folder of a run's results."""
    return f"{batch.output.uri.rstrip('/')}/{run}"

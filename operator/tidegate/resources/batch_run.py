"""Name the run of a batch, and locate its results."""

from tidegate.api.batch import BatchSpec
from tidegate.api.inference import Inference
from tidegate.resources.digest import hash_json


def make_run_name(inference: Inference, batch: BatchSpec) -> str:
    """Return the name of the run that the spec asks for: another one whenever the results could differ."""
    model = inference.spec.model
    content = {
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
        "cut": [batch.shards, inference.spec.batching.max_batch_size],
        "run": batch.run,
    }
    return f"v{model.version}-{hash_json(content)}"


def locate_run_folder(inference: Inference, batch: BatchSpec) -> str:
    """Return the folder of the run's results."""
    return f"{batch.output.uri.rstrip('/')}/{make_run_name(inference, batch)}"

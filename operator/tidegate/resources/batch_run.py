"""Which run a spec asks for, and where its results are."""

from tidegate.api.batch import Batch
from tidegate.api.inference import Inference
from tidegate.resources.digest import short_digest


def run_name(inference: Inference, batch: Batch) -> str:
    """The run that the spec asks for: another one whenever its results could be others, and the same one else."""
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
    return f"v{model.version}-{short_digest(content)}"


def run_folder(inference: Inference, batch: Batch) -> str:
    """The folder of the run's results."""
    return f"{batch.output.uri.rstrip('/')}/{run_name(inference, batch)}"

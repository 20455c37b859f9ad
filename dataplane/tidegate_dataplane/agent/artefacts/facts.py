"""Facts about a stored artefact: enough to render its configuration without reading it again."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from tidegate_dataplane.agent.artefacts.checksum import FetchedFile, artefact_digest
from tidegate_dataplane.agent.artefacts.onnx_file import OnnxFacts
from tidegate_dataplane.contract import DesiredState, ModelFormat, TensorSpec
from tidegate_dataplane.runner_interface import SHARED_ROWS


class StoredFile(BaseModel):
    """One file of the artefact: path relative to the version folder, size in bytes, sha256 in hex.

    A converted table has the sha256 of the Parquet file that it was made from, whose size is `fetched_size`.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    size: int
    sha256: str
    fetched_size: int = 0


class SourceContent(BaseModel):
    """What a source had when a table was fetched: the text that identifies it, and the time in seconds since 1970."""

    model_config = ConfigDict(frozen=True)

    identity: str
    fetched_s: float


class ArtefactFacts(BaseModel):
    """Record of a stored version.

    `inputs` and `outputs` are whole shapes; they are empty for a Python artefact, whose `config_text` declares them.
    `digest` is compared with the pin; it covers the files, or is that of an OCI manifest.
    `tables` has, for each table that is refreshed, the content of its source.
    `batched` is true if the first dimension of every tensor is free, so that requests can be joined.
    """

    model_config = ConfigDict(frozen=True)

    uri: str
    version: int
    revision: str = ""
    format: ModelFormat
    plan_hash: str = ""
    digest: str
    files: tuple[StoredFile, ...]
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    batched: bool = False
    config_text: str | None = None
    tables: dict[str, SourceContent] = {}

    def matches_order(self, order: DesiredState) -> bool:
        """Return whether this is the artefact of the order: same URI, version, format and pin."""
        return (
            self.uri == order.uri
            and self.version == order.version
            and self.revision == order.revision
            and self.format is order.format
            and self.plan_hash == plan_hash(order)
            and order.sha256 in (None, self.digest)
        )


def make_facts(order: DesiredState, files: Sequence[FetchedFile]) -> ArtefactFacts:
    """Return the facts of an artefact of these files, without its signature."""
    return ArtefactFacts(
        uri=order.uri,
        version=order.version,
        revision=order.revision,
        format=order.format,
        plan_hash=plan_hash(order),
        digest=artefact_digest(files),
        files=tuple(StoredFile(path=file.path, size=file.size, sha256=file.sha256) for file in files),
    )


def plan_hash(order: DesiredState) -> str:
    """Return the digest of the order's plan, computed here and not taken from the order; empty without a plan."""
    plan = order.plan or order.pipeline
    return plan.compute_digest() if plan else ""


def is_batched(onnx: OnnxFacts) -> bool:
    """Return whether rows of different requests can be joined along the first dimension.

    It must be free on every input and output, and the inputs that name it must agree on the name:
    two ragged inputs ("users", "items") do not share a batch. Inputs whose rows the graph shares take as many as the others too.
    """
    tensors = (*onnx.inputs, *onnx.outputs)
    if not onnx.inputs or any(not tensor.spec.shape or tensor.spec.shape[0] != -1 for tensor in tensors):
        return False
    names = {tensor.symbols[0] for tensor in onnx.inputs} - {None, SHARED_ROWS}
    return len(names) <= 1

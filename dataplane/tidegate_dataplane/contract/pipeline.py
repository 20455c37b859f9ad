"""The compiled pipeline: the features and models that a request goes through, and how their answers are merged."""

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel, PlanModel
from tidegate_dataplane.contract.tensors import TensorSpec

DEFAULTED = "tidegate_defaulted"
"""The output that marks partial answers: BYTES [-1, 1], the names of the parts whose default was used."""

CANDIDATES_HEADER = "x-tidegate-candidates"


def ask_for_fewest(part: str = "") -> str:
    """Return the value of CANDIDATES_HEADER that asks a part for the fewest rows, or each part with a cut if it has no name."""
    return f"min:{part}" if part else "min"


class ModelCall(ContractModel):
    """One model behind the gateway, and how to call it.

    `title` names it in errors: Inference ctr-v3. The gateway routes by `headers`.
    `outputs` are the requested ones, at least one; `optional_outputs` are requested too, and an answer may lack them.
    A call has at most `max_rows` rows; None: as many as the batch has.
    """

    title: str
    headers: dict[str, str]
    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = Field(min_length=1)
    optional_outputs: tuple[TensorSpec, ...] = Field(default=(), exclude_if=lambda outputs: not outputs)
    timeout_us: int = Field(ge=1)
    max_rows: int | None = Field(default=None, ge=1)


class CandidateCut(ContractModel):
    """The rows of a request that a part gets: the `max_rows` with the highest output of part `by`, or the `min_rows`.

    The fewest are for requests that ask for them (CANDIDATES_HEADER). `filler` is the output of the other rows, a decimal.
    """

    by: str
    max_rows: int = Field(ge=1)
    min_rows: int = Field(ge=1)
    filler: str


class PipelinePart(ContractModel):
    """One of the models that are called concurrently; its only output is returned as `name`.

    A part with a `default` is optional: if it does not answer in time, the output is filled with that decimal.
    A part with a `cut` is called after that part, which is an earlier one.
    """

    name: str
    call: ModelCall
    default: str | None = None
    cut: CandidateCut | None = None


class PipelinePlan(PlanModel):
    """Everything that the pipeline of one route does, with the specs of its tensors.

    `gateway` is the host:port that every call goes through.
    `inputs` are sent by clients, each of shape [-1, …]; they feed the models' inputs that are no features.
    `outputs` has one for each part, then DEFAULTED if a part is optional, and NOT_CURRENT if the call for features may have it.
    `hash` is `compute_digest()`, set by the compiler of the plan.
    """

    gateway: str
    features: ModelCall | None = None
    parts: tuple[PipelinePart, ...] = Field(min_length=1)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    hash: str = ""

    @property
    def shortened_by_header(self) -> dict[str, frozenset[str]]:
        """Return the names of the parts that get the fewest rows, by the value of CANDIDATES_HEADER."""
        cut = [part.name for part in self.parts if part.cut is not None]
        return {ask_for_fewest(): frozenset(cut)} | {ask_for_fewest(name): frozenset((name,)) for name in cut}

    @property
    def calls(self) -> tuple[ModelCall, ...]:
        """Return every call, in the order in which they are made."""
        features = (self.features,) if self.features is not None else ()
        return *features, *(part.call for part in self.parts)

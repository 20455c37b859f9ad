"""A compiled pipeline: which features and models a request goes through, and what becomes of their answers."""

from pydantic import Field

from tidegate_dataplane.contract.base import ContractModel, PlanModel
from tidegate_dataplane.contract.tensors import TensorSpec

DEFAULTED = "tidegate_defaulted"
"""The output that marks partial answers: BYTES [-1, 1], the parts whose default was taken, empty when none was."""


class Call(ContractModel):
    """One model behind the gateway, and how it is asked.

    `title` names it in errors: Inference ctr-v3. `headers` lead to it at the gateway.
    `outputs` are those that are asked for, at least one.
    """

    title: str
    headers: dict[str, str]
    model: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...] = Field(min_length=1)
    timeout_us: int = Field(ge=1)


class Part(ContractModel):
    """One of the models that are asked at the same time; its one output is answered under `name`.

    A part with a `default` is optional: what it does not answer in time is filled with that decimal.
    """

    name: str
    call: Call
    default: str | None = None


class PipelinePlan(PlanModel):
    """Everything that one route's pipeline does, with its tensors spelled out.

    `gateway` is the host:port that every call goes through.
    `inputs` is what clients send, each of shape [-1, …]; a model's input that no feature gives comes from there.
    `outputs` has one for each part, and DEFAULTED last where a part is optional.
    `hash` is `digest()`, filled in by whoever compiled the plan.
    """

    gateway: str
    features: Call | None = None
    parts: tuple[Part, ...] = Field(min_length=1)
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    hash: str = ""

    @property
    def calls(self) -> tuple[Call, ...]:
        """Every call, in the order in which they are made."""
        features = (self.features,) if self.features is not None else ()
        return *features, *(part.call for part in self.parts)

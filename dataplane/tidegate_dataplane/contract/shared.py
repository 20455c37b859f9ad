"""The desired state of a pod whose server several Inferences share, and the reports about their models."""

from collections import Counter
from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from tidegate_dataplane.contract.base import ContractModel
from tidegate_dataplane.contract.serving import AgentReport, DesiredState, ModelFormat, OwnerKind

_SHAREABLE_FORMATS = frozenset({ModelFormat.ONNX, ModelFormat.TORCH_EXPORT, ModelFormat.TENSORRT})


class SharedOrders(ContractModel):
    """The whole order for a shared pod: one order for each Inference, which all are in one namespace.

    `epoch` is the leader's term, as in DesiredState; that of the single orders is not read.
    A model shares a server only if its requests need nothing else of the pod: no stream, sample log, tables or code of its own.
    """

    epoch: int = Field(ge=0)
    orders: tuple[DesiredState, ...] = ()

    @model_validator(mode="after")
    def _check_orders(self) -> Self:
        for field in ("owner", "model"):
            name, count = (
                Counter(getattr(order, field) for order in self.orders).most_common(1)[0]
                if self.orders
                else ("", 1)
            )
            if count > 1:
                message = f"{field} {name} has {count} orders; a pod has one of them: order the others in another pod"
                raise ValueError(message)
        namespaces = sorted({order.owner.partition("/")[0] for order in self.orders})
        if len(namespaces) > 1:
            message = f"the owners are in the namespaces {', '.join(namespaces)}; only those of one namespace share a pod"
            raise ValueError(message)
        for order in self.orders:
            reason = find_obstacle(order)
            if reason is not None:
                message = f"{order.owner} shares no pod: {reason}"
                raise ValueError(message)
        return self


class SharedReports(ContractModel):
    """The observed state of a shared pod: a report for each Inference, by owner."""

    pod: str
    epoch: int
    reports: Mapping[str, AgentReport] = Field(default_factory=dict[str, AgentReport])


def find_obstacle(order: DesiredState) -> str | None:
    """Return why the model of an order cannot share a server with others; None if it can."""
    if order.kind is not OwnerKind.INFERENCE:
        return f"it is a {order.kind}; only models of Inferences share one"
    if order.format not in _SHAREABLE_FORMATS:
        return (
            f"format {order.format} runs code of its own; shared are {', '.join(sorted(_SHAREABLE_FORMATS))}"
        )
    if order.samples is not None:
        return "it logs samples; remove spec.logging"
    if order.stream is not None or order.batch is not None or order.plan is not None:
        return "its pods read streams or tables of its own"
    return None

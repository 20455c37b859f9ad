"""The description of a tensor."""

from tidegate_dataplane.contract.base import ContractModel


class TensorSpec(ContractModel):
    """Name, element type and shape of one input or output, as in the server's own model metadata.

    `dtype` uses the inference protocol's names (FP32, INT64, BYTES, ...).
    `shape` holds every dimension; -1 is a free one, and the first is -1 when the model is batched.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

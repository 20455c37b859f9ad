"""Compare tensors by their specs: whether one fits where another is taken."""

from tidegate_dataplane.contract import TensorSpec


def is_compatible(source: TensorSpec, sink: TensorSpec) -> bool:
    """Return whether a tensor of spec `source` can be passed as `sink`; a free dimension takes any length."""
    if source.dtype != sink.dtype or len(source.shape) != len(sink.shape):
        return False
    return all(
        length == other_length or -1 in (length, other_length)
        for length, other_length in zip(source.shape, sink.shape, strict=True)
    )


def format_spec(spec: TensorSpec) -> str:
    """Return type and shape, like `FP32 [-1, 8]`."""
    return f"{spec.dtype} {list(spec.shape)}"

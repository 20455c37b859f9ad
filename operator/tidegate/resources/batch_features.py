"""What the pods of a batch compute features with: the plan, the files, and the memory and disk that they take."""

from dataclasses import dataclass

from tidegate_dataplane.contract import BatchFeatures


@dataclass(frozen=True, slots=True)
class ShardFeatures:
    """The features of a batch, ready for its pods."""

    order: BatchFeatures
    memory: str
    """That of a replica of the FeatureCompute, which suffices for its tables, as a quantity."""

    disk: str = ""
    """The disk that a replica of the FeatureCompute requests for its tables, as a quantity; empty if it requests none."""

    @property
    def source_uris(self) -> tuple[str, ...]:
        """Return the URIs that the pods read."""
        return tuple(self.order.sources.values())

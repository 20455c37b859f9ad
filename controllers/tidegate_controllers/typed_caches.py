"""The typed and indexed caches of our kinds, which outlive a term."""

from dataclasses import dataclass

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.kube.typed_cache import TypedCache
from tidegate_controllers.accesses import IndexedAccesses


@dataclass(frozen=True, slots=True)
class TypedCaches:
    """The caches that a ModelAccess is planned from."""

    inferences: TypedCache[Inference]
    features: TypedCache[FeatureCompute]
    accesses: IndexedAccesses

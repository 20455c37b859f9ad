"""The typed and indexed caches of our kinds, which outlive a term."""

from dataclasses import dataclass

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.kube.parsed import Parsed
from tidegate_controllers.accesses import Accesses


@dataclass(frozen=True, slots=True)
class Known:
    """The caches that a ModelAccess is planned from."""

    inferences: Parsed[Inference]
    features: Parsed[FeatureCompute]
    accesses: Accesses

"""The fields of KServe's InferenceService (serving.kserve.io/v1beta1, as of v0.20) that have a counterpart here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import ConfigDict, Field

from tidegate.api.meta import ApiModel, CustomResource, StatusModel

KSERVE_API_VERSION: Final = "serving.kserve.io/v1beta1"
UNSERVED_FORMATS: Final = (
    "huggingface",
    "lightgbm",
    "paddle",
    "pmml",
    "pytorch",
    "sklearn",
    "tensorflow",
    "xgboost",
)
"""Fields of a predictor that hold a model in a format that Tidegate does not serve."""


class KServePart(ApiModel):
    """Base of the parts of an InferenceService: fields without a counterpart stay in `model_extra`."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    def list_extra_fields(self) -> tuple[str, ...]:
        """Return the names of the fields without a counterpart that are set."""
        extra = self.model_extra or {}
        return tuple(name for name, value in extra.items() if value not in (None, "", [], {}, False))


class KServeFormat(KServePart):
    """`modelFormat` of a model."""

    name: str
    version: str | None = None


class KServeResources(KServePart):
    """Resources of the container that serves the model."""

    requests: Mapping[str, str | int | float] = Field(default_factory=dict)
    limits: Mapping[str, str | int | float] = Field(default_factory=dict)


class KServeServer(KServePart):
    """`predictor.model`, or the older `predictor.triton`, `predictor.onnx` and so on, which have no format."""

    model_format: KServeFormat | None = None
    storage_uri: str | None = None
    runtime: str | None = None
    runtime_version: str | None = None
    protocol_version: str | None = None
    resources: KServeResources = KServeResources()


class KServeBatcher(KServePart):
    """`predictor.batcher`."""

    max_batch_size: int | None = None
    max_latency: int | None = None
    """Longest time that a request waits for others, in milliseconds."""


class KServePredictor(KServePart):
    """`spec.predictor`: a model, or as in older versions a field with the name of its format."""

    model: KServeServer | None = None
    huggingface: KServeServer | None = None
    lightgbm: KServeServer | None = None
    onnx: KServeServer | None = None
    paddle: KServeServer | None = None
    pmml: KServeServer | None = None
    pytorch: KServeServer | None = None
    sklearn: KServeServer | None = None
    tensorflow: KServeServer | None = None
    triton: KServeServer | None = None
    xgboost: KServeServer | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    container_concurrency: int | None = None
    timeout: int | None = None
    """Longest time of a request, in seconds."""
    canary_traffic_percent: int | None = None
    service_account_name: str | None = None
    batcher: KServeBatcher | None = None

    def find_old_model(self) -> tuple[str, KServeServer] | None:
        """Return the name of the format and the model, if a field with the format's name holds it."""
        names = ("onnx", "triton", *UNSERVED_FORMATS)
        models = ((name, getattr(self, name)) for name in names)
        return next(((name, model) for name, model in models if model is not None), None)


class InferenceServiceSpec(KServePart):
    """The predictor; transformer and explainer are extra."""

    predictor: KServePredictor


class InferenceServiceStatus(StatusModel):
    """The address that KServe has given."""

    url: str | None = None


class InferenceService(CustomResource):
    """A model that KServe serves."""

    KIND: ClassVar[str] = "InferenceService"
    PLURAL: ClassVar[str] = "inferenceservices"

    spec: InferenceServiceSpec
    status: InferenceServiceStatus = InferenceServiceStatus()

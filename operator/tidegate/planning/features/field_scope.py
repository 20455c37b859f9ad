"""Resolve the fields that the features of a FeatureCompute read, and refuse those that an operation cannot read."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.api.event_streams import SourceStream
from tidegate.api.feature_compute import FEATURE_OWNER, REQUEST_OWNER, FeatureComputeSpec, FeatureSource
from tidegate.errors import InvalidSpecError
from tidegate_dataplane import contract

REQUEST_DTYPES: Final[Mapping[contract.RequestFieldType, str]] = {
    contract.RequestFieldType.INT64: "INT64",
    contract.RequestFieldType.FLOAT32: "FP32",
    contract.RequestFieldType.STRING: "BYTES",
}


@dataclass(frozen=True, slots=True)
class EventColumn:
    """A field of the events of a declared stream."""

    ref: contract.FieldRef
    type: contract.EventFieldType
    stream: SourceStream


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A declared source that is a stream."""

    name: str
    entity: str
    stream: SourceStream


def make_output(name: str, dtype: str, length: int = 1) -> contract.TensorSpec:
    """Return the output tensor of a feature."""
    return contract.TensorSpec(name=name, dtype=dtype, shape=(-1, length))


class FieldScope:
    """Fields that references mean at one place of the list of features: a feature reads only those before it.

    Every method raises InvalidSpecError for a reference that the operation cannot read; `path` is the reference's place.
    """

    def __init__(self, spec: FeatureComputeSpec) -> None:
        self._entities = {entity.name: entity for entity in spec.entities}
        self._sources = {source.name: source for source in spec.sources}
        self._request = {field.name: field for field in spec.request}
        self._features = {feature.name for feature in spec.features}
        self._compiled: dict[str, contract.TensorSpec] = {}

    def add_feature(self, output: contract.TensorSpec) -> None:
        """Let later features read this one."""
        self._compiled[output.name] = output

    def resolve_column(self, reference: str, path: str) -> contract.FieldRef:
        """Return a column of a table."""
        field = self._resolve_declared(reference, path)
        if field.table is None:
            message = f"'{reference}' is an entity's key, not a column: use hash, or name a source"
            raise InvalidSpecError(message, path=path)
        return field

    def resolve_value(self, reference: str, path: str) -> contract.FieldRef:
        """Return a column of a table, a key, a field of the request or a feature: one value for each row."""
        owner, _ = _split_reference(reference)
        if owner in (FEATURE_OWNER, REQUEST_OWNER):
            return self._resolve_derived(reference, path)[0]
        return self._resolve_declared(reference, path)

    def resolve_number(self, reference: str, path: str) -> tuple[contract.FieldRef, str]:
        """Return a field of the request or a feature that is a number, and its type: INT64 or FP32."""
        owner, _ = _split_reference(reference)
        if owner not in (FEATURE_OWNER, REQUEST_OWNER):
            message = (
                f"'{reference}' has a type that is not known here: name request.<name> or feature.<name>, such as a "
                "lookup of it"
            )
            raise InvalidSpecError(message, path=path)
        field, dtype = self._resolve_derived(reference, path)
        if dtype == "BYTES":
            message = f"'{reference}' is a string, and the operation needs a number"
            raise InvalidSpecError(message, path=path)
        return field, dtype

    def resolve_event_field(self, reference: str, path: str) -> EventColumn:
        """Return a field of the events of a stream."""
        owner, name = _split_reference(reference)
        source, stream = self._find_stream(owner, path)
        event_field = next((item for item in stream.fields if item.name == name), None)
        if event_field is None:
            names = _list_names(item.name for item in stream.fields)
            message = f"stream {owner} has no field '{name}'; its fields are: {names}"
            raise InvalidSpecError(message, path=path)
        ref = contract.FieldRef(
            entity=source.entity, column=name, origin=contract.ValueOrigin.STREAM, stream=owner
        )
        return EventColumn(ref, event_field.type, stream)

    def find_entity(self, stream: str, path: str) -> str:
        """Return the entity of a stream."""
        return self.find_stream_source(stream, path).entity

    def find_stream_source(self, name: str, path: str) -> StreamSource:
        """Return a source that is a stream."""
        source, stream = self._find_stream(name, path)
        return StreamSource(name, source.entity, stream)

    def _find_stream(self, name: str, path: str) -> tuple[FeatureSource, SourceStream]:
        source = self._sources.get(name)
        if source is not None and source.stream is not None:
            return source, source.stream
        streams = _list_names(item.name for item in self._sources.values() if item.stream is not None)
        problem = f"source {name} is a table" if source is not None else f"there is no source {name}"
        message = f"{problem}, and the operation reads a stream; the streams are: {streams}"
        raise InvalidSpecError(message, path=path)

    def _resolve_declared(self, reference: str, path: str) -> contract.FieldRef:
        """Return a column of a table or a key.

        The kind's own validation has rejected references to unknown names.
        """
        owner, column = _split_reference(reference)
        source = self._sources.get(owner)
        if source is None:
            return contract.FieldRef(entity=self._entities[owner].name, column=column)
        if source.table is None:
            message = f"'{reference}' has many values, because source {owner} is a stream: read it by sequence, window or ratio"
            raise InvalidSpecError(message, path=path)
        return contract.FieldRef(entity=source.entity, table=source.name, column=column)

    def _resolve_derived(self, reference: str, path: str) -> tuple[contract.FieldRef, str]:
        """Return a field of the request or an earlier feature, and its type."""
        owner, name = _split_reference(reference)
        if owner == REQUEST_OWNER:
            request_field = self._request.get(name)
            if request_field is None:
                message = f"spec.request has no '{name}'; its names are: {_list_names(self._request)}"
                raise InvalidSpecError(message, path=path)
            ref = contract.FieldRef(column=name, origin=contract.ValueOrigin.REQUEST)
            return ref, REQUEST_DTYPES[request_field.type]
        output = self._compiled.get(name)
        if output is None:
            problem = (
                "is declared here or below, and a feature reads only those above it"
                if name in self._features
                else "does not exist"
            )
            message = f"feature '{name}' {problem}; above are: {_list_names(self._compiled)}"
            raise InvalidSpecError(message, path=path)
        if output.shape[-1] != 1:
            message = f"feature '{name}' has {output.shape[-1]} values, and the operation reads one"
            raise InvalidSpecError(message, path=path)
        return contract.FieldRef(column=name, origin=contract.ValueOrigin.FEATURE), output.dtype


def _split_reference(reference: str) -> tuple[str, str]:
    owner, _, column = reference.partition(".")
    return owner, column


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"

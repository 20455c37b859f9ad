"""Protobuf messages with the fields of a stream, without the producer's schema: the numbers and types of these are enough."""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from tidegate_dataplane.contract import Entity, EntityKeyType, EventFieldType, EventStream, RefusalReason
from tidegate_dataplane.ingester.refusal import EventRefusedError

_NAME: Final = "Event"
_INT64: Final = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
_TYPES: Final = {
    EventFieldType.INT64: _INT64,
    EventFieldType.FLOAT64: descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    EventFieldType.STRING: descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}


class ProtobufDecoder:
    """Decodes the messages of one stream."""

    def __init__(self, stream: EventStream, numbers: Mapping[str, int], entity: Entity) -> None:
        """Take the number of the key, of the time and of each field."""
        key_type = EventFieldType.STRING if entity.type is EntityKeyType.STRING else EventFieldType.INT64
        types = {
            **{field.name: _TYPES[field.type] for field in stream.fields},
            stream.event_time: _INT64,
            entity.key: _TYPES[key_type],
        }
        file = descriptor_pb2.FileDescriptorProto(name=f"{_NAME}.proto", syntax="proto3")
        message = file.message_type.add(name=_NAME)
        # Not the names of the stream, which Protobuf may not allow.
        self._names = {f"f{number}": name for name, number in numbers.items()}
        for field, name in self._names.items():
            message.field.add(
                name=field,
                number=numbers[name],
                type=types[name],
                label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
            )
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self._numbers = {number: name for name, number in numbers.items()}
        self._message_class = message_factory.GetMessageClass(pool.FindMessageTypeByName(_NAME))

    def decode_message(self, body: bytes) -> Mapping[str, Any]:
        """Return the fields by name; those that the message does not contain are 0 or empty.

        Raises:
            EventRefusedError: it is no Protobuf, or a field has another type there.
        """
        message = self._message_class()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise EventRefusedError(
                RefusalReason.MALFORMED, f"it is no Protobuf of these fields: {error}"
            ) from error
        unknown_fields = UnknownFieldSet(message)
        for index in range(len(unknown_fields)):
            unknown = unknown_fields[index]
            name = self._numbers.get(unknown.field_number)
            if name is not None:
                reason = f"{name} has another type there than declared: field {unknown.field_number} has wire type {unknown.wire_type}"
                raise EventRefusedError(RefusalReason.WRONG_TYPE, reason, field=name)
        return {name: getattr(message, field) for field, name in self._names.items()}

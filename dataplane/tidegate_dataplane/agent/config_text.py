"""config.pbtxt to and from the JSON form that Triton's load call takes, through Triton's own schema."""

from importlib import import_module
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.message import Message

# A Triton model configuration with the field names of model_config.proto.
ModelConfig = dict[str, Any]


def parse_config_text(text: str) -> ModelConfig:
    """Return the fields that `text` sets.

    Raises:
        ValueError: the text is not a model configuration; the message names line and column.
    """
    message = _empty_message()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise ValueError(str(error)) from error
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def to_config_text(config: ModelConfig) -> str:
    """Return the text of config.pbtxt for `config`."""
    return text_format.MessageToString(json_format.ParseDict(config, _empty_message()))


def _empty_message() -> Message:
    # tritonclient publishes no types for its generated modules, and only this function needs one.
    protocol = import_module("tritonclient.grpc.model_config_pb2")
    message: Message = protocol.ModelConfig()
    return message

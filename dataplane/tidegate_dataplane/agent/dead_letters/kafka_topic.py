"""A topic of Kafka that takes dead letters, each acknowledged by all replicas of its partition."""

from collections.abc import Mapping
from typing import Any, Final

from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.dead_letters.letter import LetterContent, list_forms
from tidegate_dataplane.agent.kafka_client import import_library
from tidegate_dataplane.agent.kafka_server import KafkaServer

MAX_LETTER_BYTES: Final = 64 << 20
"""More than any topic accepts, so that the cluster decides what is too large."""


class DeadLetterTopic:
    """A topic; callers own the producer."""

    def __init__(self, server: KafkaServer, topic: str) -> None:
        self._server = server
        self._topic = topic

    async def publish_letter(self, producer: Any, content: LetterContent, *, can_cut: bool = False) -> None:
        """Publish a letter with the key of its message, in the largest form that fits.

        Raises:
            BrokerError: refused, if the topic takes no message, or none of this size.
        """
        detail = ""
        for form in list_forms(content, can_cut=can_cut):
            headers = [(name, value.encode()) for name, value in form.headers.items()]
            letter = producer.send_and_wait(self._topic, form.body, key=content.key, headers=headers)
            try:
                await self._server.call_in_time(letter)
            except BrokerError as error:
                if not _is_too_large(error.__cause__):
                    raise
                detail = str(error.__cause__)
            else:
                return
        raise self._server.refusal_error(
            f"topic {self._topic} takes no dead letter of {len(content.body)} bytes: {detail}; raise its "
            "max.message.bytes"
        )


def make_letter_producer(options: Mapping[str, Any]) -> Any:
    """Return a producer for dead letters, not started; `options` are those of `KafkaServer.reach_cluster`."""
    return import_library().AIOKafkaProducer(**options, acks="all", max_request_size=MAX_LETTER_BYTES)


def _is_too_large(error: BaseException | None) -> bool:
    return type(error).__name__ in ("MessageSizeTooLargeError", "RecordListTooLargeError")

"""What the errors of a Kafka client become for the author of the spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.kafka_server import KafkaServer
from tidegate_dataplane.contract import KafkaOrder


async def test_a_record_that_the_client_cannot_read_is_named_with_the_way_out() -> None:
    order = KafkaOrder(servers=("kafka:9092",), topic="work")
    server = KafkaServer(order, lambda: SecretCredentials(), Path("/nowhere"), allow_loopback=False)

    async def read_header() -> str:
        return b"caf\xe9".decode()

    with pytest.raises(BrokerError, match=r"header whose name is no UTF-8 \(b'caf\\xe9'\)") as refused:
        await server.translate_errors(read_header())
    assert refused.value.refused
    assert "kafka-delete-records.sh" in str(refused.value)

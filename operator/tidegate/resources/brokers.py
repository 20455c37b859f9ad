"""Build the agents' orders for topics of Kafka."""

from tidegate.api.brokers import BrokerTopic
from tidegate_dataplane.contract import KafkaOrder


def make_kafka_order(topic: BrokerTopic, group: str = "") -> KafkaOrder:
    """Return the order to read a topic: as a member of `group` if it is named."""
    return KafkaOrder(
        servers=topic.bootstrap_servers,
        topic=topic.topic,
        group=group,
        secret=topic.secret_name or "",
        tls=topic.tls,
        sasl=topic.sasl,
    )

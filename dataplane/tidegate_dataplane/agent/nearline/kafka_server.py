"""A Kafka cluster of a user's choice: how it is reached, with which credentials, and its words when it refuses."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tidegate_dataplane.agent.artefacts.credentials import Credentials
from tidegate_dataplane.agent.artefacts.lookup import checked_addresses
from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.broker_tls import CA, broker_tls
from tidegate_dataplane.agent.nearline.kafka_client import library
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.contract import KafkaOrder

CALL_TIMEOUT_S: Final = 5.0
STOP_TIMEOUT_S: Final = 30.0
USERNAME, PASSWORD = "kafka-username", "kafka-password"
"""Names that no other Secret has, as for NATS: what is sent to a server of the user's choice."""


class KafkaServer:
    """One cluster as one Secret sees it; it makes no lasting connection."""

    def __init__(
        self,
        order: KafkaOrder,
        credentials: Callable[[], Credentials],
        secret_dir: Path,
        *,
        allow_loopback: bool,
    ) -> None:
        """`secret_dir` is where the Secret of the order is mounted."""
        self.order = order
        self._credentials = credentials
        self._secret_dir = secret_dir
        self._allow_loopback = allow_loopback
        self.name = ",".join(order.servers)

    async def reach(self) -> dict[str, Any]:
        """Return what a client of aiokafka is made with, once one of the servers has let us in.

        The client itself tells a refusal from an absence only in its log.

        Raises:
            BrokerError: in words for whoever wrote the servers or the Secret.
        """
        identity, detail = self._identity(), ""
        for server in self.order.servers:
            host, _, port = server.rpartition(":")
            try:
                await self._check(host, int(port))
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    connection = await library("aiokafka.conn").create_conn(host, int(port), **identity)
                    await self._check_others(connection)
            except (
                BrokerError,
                OSError,
                TimeoutError,
                RuntimeError,
            ) as error:  # aiokafka's are RuntimeErrors
                failure = self.failure(error)
                if failure.refused:
                    raise failure from error
                detail = f"{server}: {self._words(error)}"
            else:
                return {"bootstrap_servers": list(self.order.servers), **identity}
        raise BrokerError(f"Kafka at {self.name} cannot be reached: {detail}", refused=False)

    async def _check(self, host: str, port: int) -> None:
        """Refuse a host that leads to where no broker of a tenant is."""
        try:
            await checked_addresses(host.strip("[]"), port, allow_loopback=self._allow_loopback)
        except ArtefactError as error:
            raise self.refusal(error.refusal.message) from error

    async def _check_others(self, connection: Any) -> None:
        """Refuse a cluster that sends its clients to such a host, and close the connection."""
        try:
            metadata = await connection.send(library("aiokafka.protocol.metadata").MetadataRequest([]))
        finally:
            connection.close()
        for node, host, port, *_ in metadata.brokers:
            try:
                await self._check(str(host), int(port))
            except BrokerError as error:
                raise self.refusal(
                    f"broker {node} has the listener {host}:{port}, which pods must not connect to ({error.message}): "
                    "correct advertised.listeners"
                ) from error

    def refusal(self, reason: str) -> BrokerError:
        """Return the error of a cluster that is there and will not."""
        return BrokerError(f"Kafka at {self.name}: {reason}", refused=True)

    def failure(self, error: Exception) -> BrokerError:
        """Return what an error of the client means: whether it is the cluster's No, or nobody answers."""
        if isinstance(error, BrokerError):
            return error
        kind = type(error).__name__
        if "Authentication" in kind or "Sasl" in kind:
            return self.refusal(self._hint())
        if "AuthorizationFailed" in kind:
            resource = "the group" if "Group" in kind else "the cluster" if "Cluster" in kind else "a topic"
            return self.refusal(
                f"the user may not use {resource}: {self._words(error)}; the how-to lists what is needed"
            )
        if isinstance(error, ssl.SSLError):
            return self.refusal(
                f"TLS failed: {self._words(error)}; put the authority's certificate into {CA}"
            )
        return BrokerError(f"Kafka at {self.name}: {self._words(error)}", refused=False)

    def _words(self, error: Exception) -> str:
        return self._credentials().redacted(str(error) or type(error).__name__)[:300]

    def _identity(self) -> dict[str, Any]:
        values, secret, sasl = self._credentials().values, self.order.secret, self.order.sasl
        options: dict[str, Any] = {}
        if self.order.tls:
            options["ssl_context"] = self._tls(values)
        if sasl is not None:
            if missing := {USERNAME, PASSWORD} - values.keys():
                raise self.refusal(
                    f"consume.kafka.sasl wants {USERNAME} and {PASSWORD}, and Secret {secret or '(none is named)'} of the "
                    f"namespace does not exist or has no {' and no '.join(sorted(missing))}"
                )
            options |= {
                "sasl_mechanism": sasl.value,
                "sasl_plain_username": values[USERNAME],
                "sasl_plain_password": values[PASSWORD],
            }
        protocol = "SSL" if self.order.tls else "PLAINTEXT"
        return {"security_protocol": f"SASL_{protocol}" if sasl is not None else protocol, **options}

    def _tls(self, values: Mapping[str, str]) -> ssl.SSLContext:
        try:
            return broker_tls(values, self._secret_dir, self.order.secret)
        except ValueError as error:
            raise self.refusal(str(error)) from error

    def _hint(self) -> str:
        return self._credentials().hint()


async def stopped(client: Any) -> None:
    """End a consumer, producer or admin client of aiokafka, and what one that did not come about has left open.

    Whoever is in a hurry goes on while this does: a consumer that is cancelled in the middle of it stays in its group.
    """
    with contextlib.suppress(Exception):  # it is gone either way
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await (client.close() if hasattr(client, "close") else client.stop())

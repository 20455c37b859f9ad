"""A user's Kafka cluster: addresses, credentials, and translation of its errors."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.lookup import checked_addresses
from tidegate_dataplane.agent.broker_error import BrokerError
from tidegate_dataplane.agent.broker_tls import CA, broker_tls
from tidegate_dataplane.agent.kafka_client import import_library
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.stopping import is_task_cancelled
from tidegate_dataplane.contract import KafkaOrder

T = TypeVar("T")

CALL_TIMEOUT_S: Final = 5.0
STOP_TIMEOUT_S: Final = 30.0
USERNAME, PASSWORD = "kafka-username", "kafka-password"
"""Key names that no other Secret has, as for NATS: their values are sent to a server of the user's choice."""


class KafkaServer:
    """One cluster with the credentials of one Secret; it keeps no connection."""

    def __init__(
        self,
        order: KafkaOrder,
        credentials: Callable[[], SecretCredentials],
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

    async def reach_cluster(self, name: str) -> dict[str, Any]:
        """Connect to one of the servers, and return the options for clients of aiokafka, which the cluster shows as `name`.

        The client itself reports the difference between a refusal and an absent server only in its log.

        Raises:
            BrokerError: with a message for the author of the servers or the Secret.
        """
        identity, detail = self._client_options(), ""
        for server in self.order.servers:
            host, _, port = server.rpartition(":")
            try:
                await self._check_host(host, int(port))
                async with asyncio.timeout(CALL_TIMEOUT_S):
                    connection = await import_library("aiokafka.conn").create_conn(
                        host, int(port), **identity
                    )
                    await self._check_brokers(connection)
            except (
                BrokerError,
                OSError,
                TimeoutError,
                RuntimeError,
            ) as error:  # aiokafka's are RuntimeErrors
                failure = self.translate_error(error)
                if failure.refused:
                    raise failure from error
                detail = f"{server}: {self._redact_error(error)}"
            else:
                return {
                    "bootstrap_servers": list(self.order.servers),
                    **identity,
                    # Names in Kafka's own metrics and quotas have no blanks.
                    "client_id": name.replace(" ", "-"),
                    "request_timeout_ms": int(CALL_TIMEOUT_S * 1000),
                }
        raise BrokerError(f"Kafka at {self.name} cannot be reached: {detail}", refused=False)

    async def _check_host(self, host: str, port: int) -> None:
        """Raise if the host has an address that tenants must not connect to."""
        try:
            await checked_addresses(host.strip("[]"), port, allow_loopback=self._allow_loopback)
        except ArtefactError as error:
            raise self.refusal_error(error.refusal.message) from error

    async def _check_brokers(self, connection: Any) -> None:
        """Raise if the cluster advertises a listener at such an address, and close the connection."""
        try:
            metadata = await connection.send(import_library("aiokafka.protocol.metadata").MetadataRequest([]))
        finally:
            connection.close()
        for node, host, port, *_ in metadata.brokers:
            try:
                await self._check_host(str(host), int(port))
            except BrokerError as error:
                raise self.refusal_error(
                    f"broker {node} has the listener {host}:{port}, which pods must not connect to ({error.message}): "
                    "correct advertised.listeners"
                ) from error

    def refusal_error(self, reason: str) -> BrokerError:
        """Return the error for a cluster that is reachable and refuses."""
        return BrokerError(f"Kafka at {self.name}: {reason}", refused=True)

    def translate_error(self, error: Exception) -> BrokerError:
        """Translate an error of the client: the cluster refuses, or is unreachable."""
        if isinstance(error, BrokerError):
            return error
        kind = type(error).__name__
        if "Authentication" in kind or "Sasl" in kind:
            return self.refusal_error(self._explain_denial())
        if "AuthorizationFailed" in kind:
            resource = "the group" if "Group" in kind else "the cluster" if "Cluster" in kind else "a topic"
            return self.refusal_error(
                f"the user may not use {resource}: {self._redact_error(error)}; the how-to lists what is needed"
            )
        if isinstance(error, ssl.SSLError):
            return self.refusal_error(
                f"TLS failed: {self._redact_error(error)}; put the authority's certificate into {CA}"
            )
        return BrokerError(f"Kafka at {self.name}: {self._redact_error(error)}", refused=False)

    async def call_in_time(self, call: Awaitable[T]) -> T:
        """Await a call of a client with a timeout, and translate its errors.

        Raises:
            BrokerError: it failed, or took too long.
        """

        async def call_with_timeout() -> T:
            async with asyncio.timeout(CALL_TIMEOUT_S + 1):
                return await call

        return await self.translate_errors(call_with_timeout())

    async def translate_errors(self, call: Awaitable[T]) -> T:
        """Await a call of a client, and translate its errors.

        Raises:
            BrokerError: it failed.
        """
        try:
            return await call
        except (OSError, TimeoutError, RuntimeError) as error:  # all of aiokafka's are RuntimeErrors
            raise self.translate_error(error) from error
        except UnicodeDecodeError as error:  # from aiokafka, which reads no further record of that batch
            raise self.refusal_error(
                f"a record has a header whose name is no UTF-8 ({error.object[:40]!r}), and cannot be read: correct the producer, and "
                "move on behind the record's batch: near-line work by kafka-consumer-groups.sh --reset-offsets at replicas 0, features by "
                "kafka-delete-records.sh, which deletes for all consumers"
            ) from error
        except asyncio.CancelledError as error:
            if is_task_cancelled():
                raise
            raise self.translate_error(RuntimeError("the client has cancelled the call")) from error

    async def list_partitions(self, admin: Any, topic: str, field: str) -> Sequence[int]:
        """Return the partitions of a topic, which `field` of the spec names.

        Raises:
            BrokerError: there is no such topic.
        """
        (description,) = await admin.describe_topics([topic])
        if description["error_code"]:
            raise self.refusal_error(
                f"there is no topic {topic}, or the user may not see it; make it: kafka-topics.sh --create --topic "
                f"{topic}, or correct {field}"
            )
        return sorted(int(partition["partition"]) for partition in description["partitions"])

    def _redact_error(self, error: Exception) -> str:
        return self._credentials().redact_secrets(str(error) or type(error).__name__)[:300]

    def _client_options(self) -> dict[str, Any]:
        values, secret, sasl = self._credentials().values, self.order.secret, self.order.sasl
        options: dict[str, Any] = {}
        if self.order.tls:
            options["ssl_context"] = self._make_tls_context(values)
        if sasl is not None:
            if missing := {USERNAME, PASSWORD} - values.keys():
                raise self.refusal_error(
                    f"kafka.sasl wants {USERNAME} and {PASSWORD}, and Secret {secret or '(none is named)'} of the "
                    f"namespace does not exist or has no {' and no '.join(sorted(missing))}"
                )
            options |= {
                "sasl_mechanism": sasl.value,
                "sasl_plain_username": values[USERNAME],
                "sasl_plain_password": values[PASSWORD],
            }
        protocol = "SSL" if self.order.tls else "PLAINTEXT"
        return {"security_protocol": f"SASL_{protocol}" if sasl is not None else protocol, **options}

    def _make_tls_context(self, values: Mapping[str, str]) -> ssl.SSLContext:
        try:
            return broker_tls(values, self._secret_dir, self.order.secret)
        except ValueError as error:
            raise self.refusal_error(str(error)) from error

    def _explain_denial(self) -> str:
        return self._credentials().explain_denial()


async def stop_client(client: Any) -> None:
    """Stop a consumer, producer or admin client of aiokafka, and what a failed start left open.

    Callers with a deadline go on without it: a consumer that is cancelled while it stops remains in its group.
    """
    with contextlib.suppress(Exception):  # it is gone either way
        async with asyncio.timeout(STOP_TIMEOUT_S):
            try:
                await (client.close() if hasattr(client, "close") else client.stop())
            except asyncio.CancelledError:
                if is_task_cancelled():
                    raise
                # A consumer awaits the fetch that it cancels, where the broker has not answered it, and closes nothing then.
                await client._client.close()  # noqa: SLF001  no other door

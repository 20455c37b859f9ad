"""Construction of the sink for a URL, with the credentials of this pod."""

from collections.abc import Mapping
from datetime import UTC, datetime

from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials, read_credentials
from tidegate_dataplane.agent.artefacts.object_store import open_object_store
from tidegate_dataplane.agent.artefacts.uri import parse_uri
from tidegate_dataplane.agent.nats_server import SCHEMES
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.samples.buffer import Portion
from tidegate_dataplane.agent.samples.file_sink import MAX_RECORDS, ClaimStore, FileSampleSink, FileStore
from tidegate_dataplane.agent.samples.lines import SampleOrigin
from tidegate_dataplane.agent.samples.log import OpenSink
from tidegate_dataplane.agent.samples.nats_sink import NatsSampleSink
from tidegate_dataplane.agent.samples.sink import RecordSink
from tidegate_dataplane.agent.settings import AgentSettings
from tidegate_dataplane.contract import WRITABLE_SCHEMES, FailureReason, SampleOrder


def make_sink_opener(settings: AgentSettings, environment: Mapping[str, str]) -> OpenSink:
    """Return the function that opens the sink of an order; credentials are read at every connection and write."""

    def read_secret(secret: str) -> SecretCredentials:
        return read_credentials(settings.sample_secret_dir, secret, environment)

    def open_nats(order: SampleOrder, origin: SampleOrigin) -> RecordSink:
        return NatsSampleSink(
            order,
            origin,
            lambda: read_secret(order.secret) if order.secret else SecretCredentials("(none is named)"),
            settings.sample_secret_dir,
            allow_loopback=settings.allow_loopback,
        )

    def open_files(order: SampleOrder, origin: SampleOrigin) -> RecordSink:
        uri = parse_uri(order.url)
        if uri.scheme not in WRITABLE_SCHEMES:
            raise ArtefactError(
                FailureReason.URI_NOT_ALLOWED, f"samples cannot go to {order.url}: use pvc://, s3:// or gs://"
            )

        def open_store() -> FileStore:
            if uri.scheme.traits.is_mounted:
                return ClaimStore(uri, settings.sample_pvc_root)
            storage = read_credentials(settings.secret_dir, settings.secret_name, environment)
            return open_object_store(uri, settings, read_secret(order.secret) if order.secret else storage)

        portion = Portion(MAX_RECORDS, settings.sample_file_bytes, settings.sample_file_age_s)
        return FileSampleSink(uri, origin, open_store, portion, now=lambda: datetime.now(UTC))

    def open_sink(order: SampleOrder, origin: SampleOrigin) -> RecordSink:
        return open_nats(order, origin) if order.url.startswith(SCHEMES) else open_files(order, origin)

    return open_sink

"""Construction of the sink for a URL, with the credentials of this pod."""

from collections.abc import Mapping
from datetime import UTC, datetime

from tidegate_dataplane.agent.artefacts.credentials import Credentials, read_credentials
from tidegate_dataplane.agent.artefacts.object_store import ObjectSource
from tidegate_dataplane.agent.artefacts.uri import Scheme, parse_uri
from tidegate_dataplane.agent.nats_server import SCHEMES
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.samples.buffer import Portion
from tidegate_dataplane.agent.samples.files import AT_MOST_RECORDS, ClaimPlace, FilesSink, Place
from tidegate_dataplane.agent.samples.lines import Origin
from tidegate_dataplane.agent.samples.log import OpenSink
from tidegate_dataplane.agent.samples.nats import NatsSink
from tidegate_dataplane.agent.samples.sink import Sink
from tidegate_dataplane.agent.settings import Settings
from tidegate_dataplane.contract import FailureReason, SampleOrder


def sinks(settings: Settings, environment: Mapping[str, str]) -> OpenSink:
    """Return the function that opens the sink of an order; credentials are read at every connection and write."""

    def read_secret(secret: str) -> Credentials:
        return read_credentials(settings.sample_secret_dir, secret, environment)

    def open_nats(order: SampleOrder, origin: Origin) -> Sink:
        return NatsSink(
            order,
            origin,
            lambda: read_secret(order.secret) if order.secret else Credentials("(none is named)"),
            settings.sample_secret_dir,
            allow_loopback=settings.allow_loopback,
        )

    def open_files(order: SampleOrder, origin: Origin) -> Sink:
        uri = parse_uri(order.url)
        if uri.scheme not in (Scheme.PVC, Scheme.S3, Scheme.GS):
            raise ArtefactError(
                FailureReason.URI_NOT_ALLOWED, f"samples cannot go to {order.url}: use pvc://, s3:// or gs://"
            )

        def open_place() -> Place:
            if uri.scheme is Scheme.PVC:
                return ClaimPlace(uri, settings.sample_pvc_root)
            storage = read_credentials(settings.secret_dir, settings.secret_name, environment)
            return ObjectSource(
                uri,
                read_secret(order.secret) if order.secret else storage,
                allow_loopback=settings.allow_loopback,
                stall_timeout_s=settings.stall_timeout_s,
            )

        portion = Portion(AT_MOST_RECORDS, settings.sample_file_bytes, settings.sample_file_age_s)
        return FilesSink(uri, origin, open_place, portion, now=lambda: datetime.now(UTC))

    def open_sink(order: SampleOrder, origin: Origin) -> Sink:
        return open_nats(order, origin) if order.url.startswith(SCHEMES) else open_files(order, origin)

    return open_sink

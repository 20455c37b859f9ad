"""Artefacts from an S3-compatible store: moto's server, run from an environment of its own."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builders.desired import a_desired_state
from builders.onnx_models import a_model, a_tensor, with_external_data
from builders.waiting import LIMIT_S
from fixtures.object_store import CREDENTIALS, put_object
from tidegate_dataplane.agent.artefacts.credentials import SecretCredentials
from tidegate_dataplane.agent.artefacts.facts import ArtefactFacts
from tidegate_dataplane.agent.artefacts.fetch import fetch_artefact
from tidegate_dataplane.agent.artefacts.object_store import (
    GCS_IDENTITIES,
    GCS_KEYS,
    S3_IDENTITIES,
    S3_KEYS,
    ObjectSource,
    _make_config,
)
from tidegate_dataplane.agent.artefacts.receive import DownloadProgress
from tidegate_dataplane.agent.artefacts.source import ArtefactSource, ResumePoint
from tidegate_dataplane.agent.artefacts.uri import ArtefactUri, parse_uri
from tidegate_dataplane.agent.compile_store import CompileStore
from tidegate_dataplane.agent.refusals import ArtefactError
from tidegate_dataplane.agent.samples.buffer import BufferedRecord, Portion
from tidegate_dataplane.agent.samples.file_sink import FileSampleSink
from tidegate_dataplane.agent.samples.lines import SampleOrigin
from tidegate_dataplane.agent.samples.sink import SinkError, WriteOutcome
from tidegate_dataplane.compiler.cache_exchange import CacheExchange
from tidegate_dataplane.compiler.compile_cache import CompileCache
from tidegate_dataplane.contract import DesiredState, FailureReason, ModelFormat
from tidegate_dataplane.sampling.frames import SampleRecord

MODEL = a_model([a_tensor("x", ["n", 1])], [a_tensor("y", ["n", 1])]).SerializeToString()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "staging").mkdir()
    return tmp_path / "staging"


def object_source(uri: ArtefactUri, stall_timeout_s: float = LIMIT_S) -> ObjectSource:
    return ObjectSource(
        uri,
        SecretCredentials(environment=os.environ),
        allow_loopback=True,
        stall_timeout_s=stall_timeout_s,
    )


async def fetched(folder: Path, uri: str, stall_timeout_s: float = LIMIT_S, **order: object) -> ArtefactFacts:
    def open_source(parsed: ArtefactUri, _: DesiredState) -> ArtefactSource:
        return object_source(parsed, stall_timeout_s)

    return await fetch_artefact(
        a_desired_state(uri=uri, **order),
        folder,
        open_source,
        DownloadProgress(),
        partial_dir=folder.parent / "parts",
    )


async def test_a_model_with_external_data_is_fetched(bucket: str, folder: Path) -> None:
    model, data = with_external_data("weights/w.data")
    put_object(f"{bucket}/din/1/model.onnx", model.SerializeToString())
    put_object(f"{bucket}/din/1/weights/w.data", data)

    facts = await fetched(folder, "s3://models/din")

    assert [file.path for file in facts.files] == ["model.onnx", "weights/w.data"]
    assert facts.files[1].sha256 == hashlib.sha256(data).hexdigest()


async def test_a_python_artefact_is_the_whole_folder(bucket: str, folder: Path) -> None:
    put_object(f"{bucket}/code/1/model.py", b"pass")
    put_object(f"{bucket}/code/1/lib/tables.json", b"{}")
    put_object(f"{bucket}/code/2/model.py", b"other")

    facts = await fetched(folder, "s3://models/code/", format=ModelFormat.PYTHON, allow_python=True)

    assert [file.path for file in facts.files] == ["lib/tables.json", "model.py"]


async def test_what_is_not_there_is_not_found(bucket: str, folder: Path) -> None:
    with pytest.raises(ArtefactError) as raised:
        await fetched(folder, "s3://models/absent")

    assert raised.value.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND
    assert "s3://models/absent/1/model.onnx" in raised.value.refusal.message


async def test_an_unreachable_store_may_pass(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ArtefactError) as raised:
        await fetched(folder, "s3://models/ctr", stall_timeout_s=5.0)

    assert raised.value.refusal.reason is FailureReason.FETCH_FAILED


async def test_a_file_of_samples_is_put_into_the_bucket_and_a_bucket_that_is_not_there_is_said(
    bucket: str,
) -> None:
    uri, absent = parse_uri("s3://models/log"), parse_uri("s3://absent/log")
    origin = SampleOrigin("ads/ctr", "ctr-0")
    held = BufferedRecord(SampleRecord("r-1", True, "ctr", "3", 1.0, (), ()), 1, 0.0, lambda: None)

    def sink(where: ArtefactUri) -> FileSampleSink:
        now = datetime(2026, 1, 2, 3, tzinfo=UTC)
        return FileSampleSink(
            where, origin, lambda: object_source(where), Portion(1, 1, 1.0), now=lambda: now
        )

    assert await sink(uri).write([held]) == (WriteOutcome.WRITTEN,)
    name = "2026-01-02/03/ads.ctr-0.20260102T030000000000.000001.jsonl.gz"
    async with object_source(uri).open(name) as stored:
        content = b"".join([chunk async for chunk in stored.chunks])
    assert json.loads(gzip.decompress(content))["id"] == "r-1"
    with pytest.raises(SinkError, match="s3://absent/log"):
        await sink(absent).write([held])


async def test_a_large_graph_reaches_the_compiler_of_another_pod_and_one_that_may_not_be_written_is_named(
    bucket: str, tmp_path: Path
) -> None:
    content = os.urandom(1 << 20) * 12  # more than one part of an upload
    digest = hashlib.sha256(content).hexdigest()

    def make_pod(name: str, uri: str) -> tuple[CompileStore, CompileCache]:
        exchange = CacheExchange(tmp_path / name)
        store = CompileStore(exchange, object_source)
        store.follow_order(a_desired_state(graph_passes=True, compile_cache=uri))
        return store, CompileCache(None, exchange)

    store, cache = make_pod("first", "s3://models/compiled")
    await store.answer_requests()
    cache.add_file(f"{digest}.graph", content)
    await store.write_offers()
    assert store.problem == ""
    store, cache = make_pod("second", "s3://models/compiled")
    async with asyncio.TaskGroup() as tasks:
        await store.answer_requests()
        moving = tasks.create_task(store.read_files())
        taken = await asyncio.to_thread(cache.copy_file, digest, ".graph", tmp_path / "graph")
        absent = await asyncio.to_thread(cache.read_file, f"{'0' * 64}.result")
        moving.cancel()
    assert (taken, absent, store.problem) == (True, None, "")
    assert (tmp_path / "graph").read_bytes() == content

    store, cache = make_pod("third", "s3://absent/compiled")
    await store.answer_requests()
    cache.add_file(f"{digest}.graph", content)
    await store.write_offers()
    assert f"s3://absent/compiled/{digest}.graph" in store.problem


async def test_an_object_is_read_on_from_a_byte_while_it_is_the_same(bucket: str) -> None:
    put_object(f"{bucket}/part/1/model.onnx", b"0123456789" * 10)
    store = ObjectSource(
        parse_uri("s3://models/part"), SecretCredentials(environment=os.environ), allow_loopback=True
    )
    async with store.open("1/model.onnx") as whole:
        validator = whole.validator
    assert validator is not None

    async with store.open("1/model.onnx", ResumePoint(95, validator)) as rest:
        assert (rest.start, rest.size) == (95, 100)
        assert b"".join([chunk async for chunk in rest.chunks]) == b"56789"

    async with store.open("1/model.onnx", ResumePoint(95, '"of-another-content"')) as other:
        assert other.start == 0


ENDPOINTS = {
    "http://169.254.169.254": "a link-local address",
    "http://127.0.0.1:9000": "a loopback address",
    "http://127.1:9000": "loopback",
    "http://localhost:9000": "loopback",
    "ftp://models.example.com": "no http",
}


async def test_an_endpoint_that_answers_with_the_nodes_rights_is_not_asked(folder: Path) -> None:
    for endpoint, why in ENDPOINTS.items():
        secret = SecretCredentials("models", {"AWS_ENDPOINT_URL": endpoint, **CREDENTIALS})
        with pytest.raises(ArtefactError, match=why) as raised:
            await fetch_artefact(
                a_desired_state(uri="s3://models/ctr"),
                folder,
                lambda uri, _, secret=secret: ObjectSource(uri, secret),
                DownloadProgress(),
                partial_dir=folder.parent / "parts",
            )
        assert raised.value.refusal.reason is FailureReason.URI_NOT_ALLOWED


def test_without_credentials_nobody_signs_and_the_node_is_not_asked_for_its_own() -> None:
    bare = _make_config(S3_KEYS, S3_IDENTITIES, SecretCredentials())
    own = _make_config(S3_KEYS, S3_IDENTITIES, SecretCredentials(values=CREDENTIALS))

    assert bare["skip_signature"] is True
    assert "skip_signature" not in own


def test_a_secret_cannot_send_the_store_for_the_nodes_credentials() -> None:
    places = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.169.254/latest/meta-data",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/etc/hostname",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/etc/hostname",
    }

    of_the_secret = _make_config(S3_KEYS, S3_IDENTITIES, SecretCredentials(values=places))
    of_the_platform = _make_config(S3_KEYS, S3_IDENTITIES, SecretCredentials(environment=places))

    assert of_the_secret == {"skip_signature": True}
    assert of_the_platform["container_credentials_full_uri"] == places["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
    assert "skip_signature" not in of_the_platform


def test_a_service_accounts_key_cannot_name_another_endpoint() -> None:
    key = json.dumps({"client_email": "a@b", "gcs_base_url": "http://127.0.0.1", "disable_oauth": True})

    config = _make_config(
        GCS_KEYS, GCS_IDENTITIES, SecretCredentials(values={"GOOGLE_SERVICE_ACCOUNT_KEY": key})
    )

    assert json.loads(config["service_account_key"]) == {"client_email": "a@b"}
    with pytest.raises(ArtefactError, match="is not the JSON of a service account"):
        _make_config(GCS_KEYS, GCS_IDENTITIES, SecretCredentials(values={"GOOGLE_SERVICE_ACCOUNT_KEY": "x"}))


@pytest.mark.parametrize("registry", ["docker.io", "registry-1.docker.io"])
def test_the_hub_is_found_under_the_name_that_kubectl_writes(registry: str) -> None:
    auth = base64.b64encode(b"me:secret").decode()
    config = json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": auth}}})
    credentials = SecretCredentials(values={".dockerconfigjson": config})

    assert credentials.registry_authorization(registry) == f"Basic {auth}"
    assert credentials.registry_authorization("registry.example.com") is None


@pytest.mark.usefixtures("bucket")
async def test_an_object_is_identified_until_it_is_written_again() -> None:
    source = object_source(parse_uri("s3://models/tables"))
    await source.put("users.parquet", b"one")
    first = await source.identify_content("users.parquet")
    again = await source.identify_content("users.parquet")
    await source.put("users.parquet", b"two")

    assert first == again
    assert await source.identify_content("users.parquet") != first


@pytest.mark.usefixtures("bucket")
async def test_an_object_that_is_gone_is_not_identified() -> None:
    with pytest.raises(ArtefactError) as raised:
        await object_source(parse_uri("s3://models/tables")).identify_content("absent.parquet")

    assert raised.value.refusal.reason is FailureReason.ARTEFACT_NOT_FOUND
    assert raised.value.refusal.message == "there is no s3://models/tables/absent.parquet"

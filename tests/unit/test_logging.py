"""Logs: one line for each event, with its keys, whoever wrote it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from tidegate.api.meta import ObjectKey
from tidegate.runtime.logging import LogFormat, configure_logging


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_event_is_one_line_of_json_with_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(log_format=LogFormat.JSON)
    structlog.stdlib.get_logger("tidegate.test").info(
        "model_loaded", key=ObjectKey("ads", "ctr"), version="3"
    )
    (line,) = lines(capsys)
    assert (line["event"], line["key"], line["version"], line["level"]) == (
        "model_loaded",
        "ads/ctr",
        "3",
        "info",
    )
    assert line["logger"] == "tidegate.test"
    assert str(line["timestamp"]).endswith("Z")


def test_logs_of_libraries_look_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(log_format=LogFormat.JSON)
    logging.getLogger("kopf.activities").warning("startup of %s", "kopf")
    (line,) = lines(capsys)
    assert (line["event"], line["level"]) == ("startup of kopf", "warning")


def test_an_exception_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(log_format=LogFormat.JSON)
    structlog.stdlib.get_logger().error("reconcile_crashed", exc_info=KeyError("bug"))
    (line,) = lines(capsys)
    assert "KeyError" in str(line["exception"])


def test_what_is_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(level="warning", log_format=LogFormat.CONSOLE)
    structlog.stdlib.get_logger().info("listed")
    assert capsys.readouterr().err == ""


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown log level 'loud'"):
        configure_logging(level="loud")

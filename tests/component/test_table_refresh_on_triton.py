"""Tables that change while a real Triton answers from them: no request fails, and no answer mixes two tables."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from builders.features import Lookup, LookupType, a_plan, of_user, write_table
from builders.metrics_page import metric
from builders.scenario import require_scenario
from builders.waiting import LIMIT_S, wait_until
from fixtures.agent import ModelPod
from tidegate.api.reasons import Reason
from tidegate_dataplane.contract import (
    AgentPhase,
    AgentReport,
    FeatureTable,
    ModelFormat,
    OwnerKind,
    TableRefresh,
    TableReport,
)

pytestmark = [pytest.mark.triton, pytest.mark.no_rerun("a lost request, or a wrong answer")]

USERS = 20_000
FEATURES = (
    Lookup(name="age", field=of_user("age"), type=LookupType.INT64, default="-1"),
    Lookup(name="score", field=of_user("score"), type=LookupType.FLOAT32, default="-1"),
    Lookup(name="history", field=of_user("history"), type=LookupType.INT64, length=3, default="-1"),
)


def publish(path: Path, generation: int, users: int = USERS) -> None:
    """Publish a table whose every value is the generation, as one rename."""
    columns = {
        "user_id": list(range(users)),
        "age": [generation] * users,
        "score": [float(generation)] * users,
        "history": [[generation] * 3] * users,
    }
    write_table(path.with_name("part"), **columns).replace(path)


def publish_damaged(path: Path, generation: int) -> None:
    """Publish a table whose metadata is intact and whose data is not."""
    publish(path.with_name("intact"), generation)
    content = bytearray(path.with_name("intact").read_bytes())
    content[4 : len(content) // 2] = b"\xff" * (len(content) // 2 - 4)
    path.with_name("damaged").write_bytes(content)
    path.with_name("damaged").replace(path)


@dataclass
class Caller:
    """Asks for users all over the table, one request after the other, and records what is answered."""

    address: str
    model: str
    answers: list[frozenset[float]] = field(default_factory=list[frozenset[float]])
    """The values in each answer."""
    problems: list[str] = field(default_factory=list[str])

    def ask(self, stop: threading.Event) -> None:
        """Ask until `stop` is set."""
        users = np.arange(0, USERS, USERS // 64, dtype=np.int64)[:64].reshape(-1, 1)
        tensor = triton_grpc.InferInput("user_id", list(users.shape), "INT64")
        tensor.set_data_from_numpy(users)
        with triton_grpc.InferenceServerClient(self.address) as client:
            while not stop.is_set():
                try:
                    answer = client.infer(self.model, [tensor], client_timeout=LIMIT_S)
                except Exception as error:  # noqa: BLE001 - whatever it is, a request failed
                    self.problems.append(str(error))
                else:
                    values = [answer.as_numpy(feature.name).ravel().tolist() for feature in FEATURES]
                    self.answers.append(frozenset(float(value) for part in values for value in part))


@contextmanager
def callers(pod: ModelPod, count: int = 2) -> Iterator[list[Caller]]:
    """Ask all the time, from several connections, as long as the block lasts."""
    stop = threading.Event()
    asking = [Caller(pod.triton.grpc, pod.model) for _ in range(count)]
    threads = [threading.Thread(target=caller.ask, args=(stop,)) for caller in asking]
    for thread in threads:
        thread.start()
    try:
        yield asking
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


@pytest.fixture
def users(pod: ModelPod) -> Path:
    """The table of the pod's plan, which serves generation 1 and is looked at twice a second."""
    path = pod.models / f"{pod.model}.parquet"
    publish(path, 1)
    refresh = TableRefresh(interval_ms=500, min_keys_percent=50)
    table = FeatureTable(name="profiles", entity="user", uri=f"file://{path}", refresh=refresh)
    order = pod.order(
        owner="ads/user-features",
        kind=OwnerKind.FEATURE_COMPUTE,
        format=ModelFormat.FEATURES,
        uri="",
        plan=a_plan(*FEATURES, tables=[table]),
    )
    pod.put(order)
    # A report may say that the features serve before it has their table.
    pod.wait_for(
        "the features serve, and the keys are counted",
        lambda report: report.phase is AgentPhase.READY and [each.keys for each in report.tables] == [USERS],
    )
    return path


def table_of(report: AgentReport) -> TableReport:
    """The only table of the plan."""
    (table,) = report.tables
    return table


def count_ends(pod: ModelPod) -> float:
    """Return how many processes of models have ended that were to serve, for another reason than memory."""
    return metric(pod.metrics(), "tidegate_agent_runner_ends_total", reason="other")


def mapped_tables(pod: ModelPod) -> list[str]:
    """The converted tables of the pod that processes have mapped, those that were removed with a mark."""
    folder, lines = str(pod.folder), set[str]()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            lines |= {line for line in maps.read_text().splitlines() if folder in line and ".table" in line}
    return sorted({line.split(None, 5)[-1].rpartition("/")[2] for line in lines})


def wait_for_answers(asking: list[Caller], value: float, *, count: int = 20) -> None:
    """Wait until every caller's newest answers are these."""
    wait_until(
        lambda: all(caller.answers[-count:] == [frozenset({value})] * count for caller in asking),
        what=f"every caller is answered with generation {value:g}",
    )


@pytest.mark.produces(Reason.TABLE_REFUSED)
def test_while_tables_change_no_request_fails_and_no_answer_mixes_two(pod: ModelPod, users: Path) -> None:
    ends = count_ends(pod)
    with callers(pod) as asking:
        wait_for_answers(asking, 1)
        first = table_of(pod.report())

        publish(users, 2, USERS + 5)
        wait_for_answers(asking, 2)
        second = table_of(
            pod.wait_for("the new keys are reported", lambda report: table_of(report).keys == USERS + 5)
        )

        publish(users, 3, USERS * 2 // 5)
        few = pod.wait_for("few keys are refused", lambda report: "8,000 keys" in table_of(report).message)
        wait_for_answers(asking, 2)

        publish_damaged(users, 4)
        damaged = pod.wait_for(
            "the damaged one is refused",
            lambda report: table_of(report).problem is not None and "8,000" not in table_of(report).message,
        )
        wait_for_answers(asking, 2)

        publish(users, 5)
        wait_for_answers(asking, 5)
        last = pod.wait_for(
            "nothing is refused any more",
            lambda report: table_of(report).problem is None and table_of(report).keys == USERS,
        )

    problems = [problem for caller in asking for problem in caller.problems]
    is_starved = count_ends(pod) > ends and all("is not healthy" in problem for problem in problems)
    require_scenario(
        not is_starved, "no process is without CPU for the 0.8 s after which it is killed (ADR 50)"
    )
    assert problems == []
    wait_until(
        lambda: mapped_tables(pod) == ["profiles.table"],
        what="only the newest table is mapped",
    )
    (folder,) = pod.folder.rglob("1/tables")
    assert [path.name for path in folder.iterdir()] == ["profiles.table"]
    for caller in asking:
        assert [sorted(values) for values, _ in groupby(caller.answers)] == [[1.0], [2.0], [5.0]]
    assert second.loaded_s > first.loaded_s
    for report in (few, damaged):
        assert table_of(report).problem == Reason.TABLE_REFUSED
        assert (table_of(report).keys, table_of(report).loaded_s) == (USERS + 5, second.loaded_s)
        assert (report.phase, report.failure) == (AgentPhase.READY, None)
    assert "has 8,000 keys and the loaded one 20,005" in table_of(few).message
    assert "table 'profiles' cannot be read as Parquet" in table_of(damaged).message
    assert table_of(last).loaded_s > second.loaded_s
    assert 'tidegate_agent_table_refusals_total{reason="TableRefused",source="profiles"}' in pod.metrics()


def test_a_damaged_table_is_never_loaded_by_a_server_that_starts_again(pod: ModelPod, users: Path) -> None:
    publish_damaged(users, 2)
    pod.wait_for("it is refused", lambda report: table_of(report).problem is not None)
    pod.triton.kill()
    pod.triton.start()
    pod.takes_requests()

    with callers(pod) as asking:
        wait_for_answers(asking, 1)

    assert [caller.problems for caller in asking] == [[], []]


def test_an_agent_that_starts_again_takes_the_newest_table(pod: ModelPod, users: Path) -> None:
    with callers(pod) as asking:
        wait_for_answers(asking, 1)
        pod.kill_agent()
        publish(users, 2)
        pod.start_agent()
        wait_for_answers(asking, 2)

    assert [caller.problems for caller in asking] == [[], []]


@pytest.mark.produces(Reason.TABLE_UNREACHABLE)
def test_a_table_that_is_gone_is_named_and_serves_on(pod: ModelPod, users: Path) -> None:
    with callers(pod) as asking:
        users.unlink()
        gone = pod.wait_for("it is missed", lambda report: table_of(report).problem is not None)
        wait_for_answers(asking, 1)
        publish(users, 2)
        wait_for_answers(asking, 2)
        pod.wait_for("it is missed no more", lambda report: table_of(report).problem is None)

    assert table_of(gone).problem == Reason.TABLE_UNREACHABLE
    assert f"there is no file://{users}" in table_of(gone).message
    assert [caller.problems for caller in asking] == [[], []]

"""Plants defects in a copy of the checkout, one at a time, and reports which tests fail: `python tests/planted_defects.py [NAME...]`.

A test that has never failed proves little. Each defect changes one place of the product, as an engineer might by
mistake; the tests named beside it must all fail with the change and pass without it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from run import STAGES
from stages.results import Results, read

ROOT: Final = Path(__file__).resolve().parents[1]
RESULT: Final = ROOT / "build" / "planted-defects.json"
TOOLS: Final = Path("build") / "tools"
"""Where `make setup` installs uv on a machine without it; some tests build with it."""
LIMIT_S: Final = 120
"""A defect may make a test wait forever; that is a failure too."""
SOURCE_ROOTS: Final = ("operator", "controllers", "dataplane", "localcluster")

say = functools.partial(print, flush=True)


@dataclass(frozen=True, slots=True)
class Defect:
    """One mistake: `text` occurs once in `file`, and is replaced by `by`."""

    name: str
    suffered: str
    """What a user would suffer."""
    file: str
    text: str
    by: str
    seen_by: tuple[str, ...]
    """Tests that must fail, at the cheapest level that can: node ids without parameters."""

    @property
    def module(self) -> str:
        """Name of the module that the file is."""
        return ".".join(Path(self.file).with_suffix("").parts[1:])


DEFECTS: Final = (
    Defect(
        name="share-secrets",
        suffered="The owner of a shared feature names a Secret of another namespace, and a broker that gets it.",
        file="operator/tidegate/planning/features/shared_features.py",
        text="        if is_foreign and _has_secret(source.stream):\n",
        by="        if False and _has_secret(source.stream):\n",
        seen_by=(
            "tests/unit/test_shared_feature_plan.py::TestRefusals::test_what_cannot_be_used_is_named_with_the_way_out",
        ),
    ),
    Defect(
        name="drop-acknowledgement",
        suffered="A route never becomes Programmed: what a gateway accepts on an open stream is not counted.",
        file="operator/tidegate/xds/ledger.py",
        text="proxy is None or proxy.stream <= stream:",
        by="proxy is None or proxy.stream < stream:",
        seen_by=(
            "tests/unit/test_xds_ledger.py::test_a_generation_is_programmed_once_every_proxy_runs_it_or_a_later_one",
        ),
    ),
    Defect(
        name="keep-message",
        suffered="A near-line message is delivered again and again, although its result is stored.",
        file="dataplane/tidegate_dataplane/agent/nearline/worker.py",
        text="            self._metrics.nearline_duplicates.inc()\n        await self._settle_delivery(delivery)\n        if",
        by="            self._metrics.nearline_duplicates.inc()\n        if",
        seen_by=(
            "tests/unit/test_nearline_session.py::test_a_message_that_went_to_another_pod_is_let_go_without_being_asked",
        ),
    ),
    Defect(
        name="skip-drain",
        suffered="A pod that has had no request yet ends at once, with the first ones on their way to it.",
        file="dataplane/tidegate_dataplane/agent/drain.py",
        text="while count is not None and",
        by="while count and",
        seen_by=(
            "tests/unit/test_agent_drain.py::test_a_pod_that_has_had_no_request_yet_waits_for_those_on_their_way",
        ),
    ),
    Defect(
        name="skip-drain-of-leaving-pod",
        suffered="Each pod that leaves breaks off its requests: its agent hears the signal, and does not drain.",
        file="dataplane/tidegate_dataplane/agent/process.py",
        text="        await leaving.wait()\n        await drain.run()",
        by="        await leaving.wait()\n        drain.active = True",
        seen_by=(
            "tests/component/test_agent_leaving.py::test_a_pod_that_leaves_is_not_drained_before_its_requests_end",
        ),
    ),
    Defect(
        name="lose-key",
        suffered="The last object of a namespace that waits is not reconciled before it changes again.",
        file="operator/tidegate/runtime/workqueue.py",
        text="        if lane:\n            self._lanes[namespace]",
        by="        if len(lane.begun) + len(lane.fresh) > 1:\n            self._lanes[namespace]",
        seen_by=("tests/unit/test_workqueue.py::test_no_change_is_ever_lost",),
    ),
    Defect(
        name="lose-change-during-reconcile",
        suffered="A change that comes while its object is being reconciled is lost when others wait for a worker.",
        file="operator/tidegate/runtime/workqueue.py",
        text="        if key in self._dirty:",
        by="        if key in self._dirty and not self._waiting_since:",
        seen_by=("tests/unit/test_workqueue.py::test_no_change_is_ever_lost",),
    ),
    Defect(
        name="answer-with-other-weights",
        suffered="After a rollback a newer version keeps answering, while the pod reports the older version.",
        file="dataplane/tidegate_dataplane/agent/state.py",
        text="return bool(ready) and max(ready) == order.version",
        by="return order.version in ready",
        seen_by=(
            "tests/unit/test_agent_state.py::test_a_proven_version_that_a_newer_one_answers_for_is_loaded_again_without_it",
        ),
    ),
    Defect(
        name="keep-newer-weights",
        suffered="A roll back leaves the newer version in memory, and Triton answers with it.",
        file="dataplane/tidegate_dataplane/agent/state.py",
        text="if version < order.version and version in stored",
        by="if version != order.version and version in stored",
        seen_by=("tests/unit/test_agent_state.py::test_which_versions_stay_loaded",),
    ),
    Defect(
        name="serve-unready-endpoint",
        suffered="Requests for features and pipelines go to pods that have not loaded anything yet.",
        file="operator/tidegate/planning/access/backends.py",
        text="if pod.ready and pod.is_reachable and pod.address is not None",
        by="if pod.is_reachable and pod.address is not None",
        seen_by=("tests/unit/test_fleet_feed.py::test_a_pod_that_cannot_answer_is_no_endpoint",),
    ),
    Defect(
        name="serve-silent-endpoint",
        suffered="Requests go to pods on a node that the cluster has lost: their readiness is Unknown.",
        file="operator/tidegate/planning/pods.py",
        text='if ready.get("status") == "True":',
        by='if ready.get("status", "False") != "False":',
        seen_by=("tests/unit/test_fleet_feed.py::test_a_pod_that_cannot_answer_is_no_endpoint",),
    ),
    Defect(
        name="keep-lost-pod-without-compiler",
        suffered="A pod whose compiler had ended keeps its requests for minutes after its node was lost.",
        file="operator/tidegate/publisher/restart_deadlines.py",
        text="replace(pod, ready=False) if pod.restart_due is not None and pod.restart_due <= now else pod",
        by="pod",
        seen_by=(
            "tests/unit/test_fleet_feed.py::test_a_pod_serves_without_its_compiler_until_its_kubelet_would_have_restarted_that",
        ),
    ),
    Defect(
        name="forget-expiry",
        suffered="A pin for a sale binds the allocator for good.",
        file="operator/tidegate/planning/pools/overrides.py",
        text="if now < override.end_time and override.metadata",
        by="if override.metadata",
        seen_by=("tests/unit/test_allocation_view.py::test_an_override_that_has_ended_bounds_nothing",),
    ),
    Defect(
        name="forget-to-look-at-expiry",
        suffered="An Inference says OverrideActive until something else changes it, long after the override ended.",
        file="operator/tidegate/planning/inference/planner.py",
        text="return until_end if requeue_after is None else min(requeue_after, until_end)",
        by="return requeue_after",
        seen_by=("tests/unit/test_overrides.py::test_an_inference_looks_again_when_its_first_override_ends",),
    ),
    Defect(
        name="leave-pool-at-once",
        suffered="A pool that leaves the list of an Inference takes its serving pods with it.",
        file="operator/tidegate/planning/inference/pool_deployments.py",
        text="missing = max(observed.inference.spec.replicas - ready, 0)",
        by="missing = 0",
        seen_by=(
            "tests/unit/test_several_pools.py::TestAPoolThatLeavesTheList::test_its_pods_stay_until_others_are_ready",
        ),
    ),
    Defect(
        name="take-from-the-first-pool",
        suffered="Two allocators stop replicas of one Inference at the same time, and requests are lost.",
        file="operator/tidegate/planning/allocator/other_pools.py",
        text="max(rate - elsewhere, min(here, rate - ready_before), 0.0)",
        by="max(rate - elsewhere, 0.0)",
        seen_by=("tests/unit/test_other_pools.py::test_less_demand_ends_replicas_in_the_last_pool_first",),
    ),
    Defect(
        name="count-on-what-stops",
        suffered="A model that moves to another pool loses replicas in the first one before it has others, and requests are lost.",
        file="operator/tidegate/planning/allocator/other_pools.py",
        text="ready=min(pool.ready, pool.replicas, divided[pool.name]),",
        by="ready=divided[pool.name],",
        seen_by=(
            "tests/unit/test_pool_group.py::test_replicas_leave_the_first_pool_one_by_one_as_others_are_ready",
        ),
    ),
    Defect(
        name="accept-wrong-checksum",
        suffered="A model with another checksum than the pinned one serves.",
        file="dataplane/tidegate_dataplane/agent/artefacts/fetch.py",
        text='    check_pin(order.sha256, facts.digest, target.artefact, "spec.model.sha256")\n    return facts',
        by="    return facts",
        seen_by=("tests/unit/test_agent_artefacts.py::TestFolders::test_a_wrong_pin_names_both_checksums",),
    ),
    Defect(
        name="accept-wrong-table",
        suffered="A feature table with another checksum than the pinned one is used.",
        file="dataplane/tidegate_dataplane/agent/artefacts/table_fetch.py",
        text="check_pin(table.sha256, file.sha256,",
        by="check_pin(file.sha256, file.sha256,",
        seen_by=(
            "tests/unit/test_agent_artefacts.py::TestFeatures::test_a_table_that_is_not_the_pinned_one_is_refused",
        ),
    ),
    Defect(
        name="take-half-a-table",
        suffered="A table that is half written replaces a complete one, and half of the users get defaults.",
        file="dataplane/tidegate_dataplane/agent/table_refresh.py",
        text="if keys * 100 < loaded * refresh.min_keys_percent:",
        by="if keys < 0:",
        seen_by=(
            "tests/unit/test_table_refresh.py::test_a_table_without_most_keys_is_refused_once_with_both_numbers",
        ),
    ),
    Defect(
        name="leave-a-refused-table",
        suffered="A table under which Triton ended stays on disk, and Triton ends again when it starts.",
        file="dataplane/tidegate_dataplane/agent/table_refresh.py",
        text="        if installed is not None and served is not None:",
        by="        if installed is None and served is not None:",
        seen_by=(
            "tests/unit/test_table_refresh.py::test_a_server_that_ends_while_it_loads_gets_the_old_table",
        ),
    ),
    Defect(
        name="double-result",
        suffered="A message that is delivered twice replaces its result after others have read it.",
        file="dataplane/tidegate_dataplane/agent/nearline/nats_bucket.py",
        text="bucket.create(request_id, content)",
        by="bucket.put(request_id, content)",
        seen_by=("tests/component/test_nearline_broker.py::test_an_id_keeps_its_first_result",),
    ),
    Defect(
        name="leak-secret-into-log",
        suffered="A connection that is cut within a Secret leaves it in the log.",
        file="operator/tidegate/kube/watch.py",
        text="sent a line that is no event",
        by="sent a line that is no event: {line!r}",
        seen_by=("tests/component/test_kube_transport.py::test_nothing_that_an_object_holds_is_in_the_log",),
    ),
    Defect(
        name="show-secret-in-text",
        suffered="Whatever text holds a Secret, such as that of an exception, shows its values.",
        file="operator/tidegate/routing/credentials.py",
        text="entries: Mapping[str, bytes] = field(repr=False)",
        by="entries: Mapping[str, bytes]",
        seen_by=(
            "tests/unit/test_credentials.py::test_no_secret_breaks_the_reader_and_none_shows_in_a_text",
        ),
    ),
    Defect(
        name="repeat-secret",
        suffered="What a server of models or a broker says back of a password is in the agent's log and report.",
        file="dataplane/tidegate_dataplane/agent/artefacts/credentials.py",
        text='text = text.replace(value, "…")',
        by='text.replace(value, "…")',
        seen_by=(
            "tests/unit/test_agent_artefacts.py::test_what_a_server_says_back_of_a_secret_is_not_repeated",
        ),
    ),
    Defect(
        name="skip-fence",
        suffered="A leader that has lost its Lease still changes autoscalers, gates and taints.",
        file="operator/tidegate/kube/client.py",
        text='"PATCH", path, self._write_timeout(fence), query=query, body=patch',
        by='"PATCH", path, self._settings.request_timeout, query=query, body=patch',
        seen_by=("tests/component/test_kube_transport.py::test_no_write_is_sent_after_the_end_of_its_fence",),
    ),
    Defect(
        name="obey-old-leader",
        suffered="An order of the previous leader replaces that of the current leader in a pod.",
        file="dataplane/tidegate_dataplane/agent/loop.py",
        text="order.epoch < current.epoch:",
        by="order.epoch < current.epoch and order.generation < current.generation:",
        seen_by=("tests/unit/test_agent_loop.py::test_an_older_leader_is_refused",),
    ),
    Defect(
        name="answer-late",
        suffered="A model's process that was short of CPU answers one caller with what another asked.",
        file="dataplane/tidegate_dataplane/sampling/watchdog.py",
        text="MAX_SILENCE_S = 0.8",
        by="MAX_SILENCE_S = 8.0",
        seen_by=(
            "tests/unit/test_watchdog.py::test_a_process_lives_for_less_than_the_backend_waits_while_it_answers_and_while_that_is_sent",
        ),
    ),
    Defect(
        name="accept-wrong-pass",
        suffered="A graph pass that changes answers is applied: every request gets wrong scores.",
        file="dataplane/tidegate_dataplane/graph_passes/pipeline.py",
        text="if error > allowed:",
        by="if error > 1 + allowed:",
        seen_by=("tests/unit/test_optimize_model.py::test_a_pass_that_changes_answers_is_left_out",),
    ),
    Defect(
        name="trust-engine",
        suffered="An engine that answers wrongly is used: requests of its shape get wrong scores.",
        file="dataplane/tidegate_dataplane/engines/engine_router.py",
        text="elif not check.compare_answers([(original, answer)]):",
        by="elif not route.bucket:",
        seen_by=(
            "tests/unit/test_engine_router.py::test_an_engine_that_answers_wrongly_is_found_out_and_used_no_more",
        ),
    ),
    Defect(
        name="compute-ids-in-engine",
        suffered="An id beyond its table is answered by an engine with zeros instead of an error.",
        file="dataplane/tidegate_dataplane/compiler/split_graph.py",
        text="value.dtype not in _NETWORK_TYPES",
        by="value.dtype is None",
        seen_by=(
            "tests/unit/test_split_graph.py::test_the_network_of_a_fused_graph_has_no_table_and_no_integer",
        ),
    ),
    Defect(
        name="skip-range-check",
        suffered="An id beyond its own table gets the embedding of another column instead of an error.",
        file="dataplane/tidegate_dataplane/graph_passes/fuse_embeddings.py",
        text="if all(low >= 0 and high < size for (low, high), size in zip(bounds, entries, strict=True)):",
        by="if bounds or entries:",
        seen_by=(
            "tests/unit/test_fuse_embeddings.py::test_answers_are_equal_bit_for_bit_and_ids_out_of_range_fail_as_before",
        ),
    ),
    Defect(
        name="forget-compiled-graph",
        suffered="After a rollback the version serves without its compiled graph and is compiled again.",
        file="dataplane/tidegate_dataplane/agent/state.py",
        text='return on_disk if on_disk != UNKNOWN_GRAPH else ""',
        by='return ""',
        seen_by=(
            "tests/unit/test_agent_state.py::test_a_loaded_graph_and_one_that_is_not_there_yet_need_no_step",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Sighting:
    """One test that failed with a defect, and what it said."""

    test: str
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of planting one defect."""

    defect: Defect
    sightings: Sequence[Sighting]
    missed_by: Sequence[str]
    """Named tests that did not fail, or do not pass without the defect either."""
    seconds: float

    @property
    def seen(self) -> bool:
        """Whether every named test failed by it."""
        return not self.missed_by


class Copy:
    """A copy of the checkout as it is, with an environment that has the same packages and imports the copy."""

    def __init__(self, folder: Path) -> None:
        """Copy into `folder`, which is empty."""
        self._folder = folder
        self._python = folder / ".venv" / "bin" / "python"
        _copy_checkout(folder)
        _make_environment(folder / ".venv", [folder / root for root in SOURCE_ROOTS])

    @contextmanager
    def planted(self, defect: Defect) -> Iterator[None]:
        """Have the defect in the copy. Raises ValueError when its text is not there once."""
        path = self._folder / defect.file
        content = path.read_text()
        if content.count(defect.text) != 1:
            message = f"{defect.name}: its text occurs {content.count(defect.text)} times in {defect.file}"
            raise ValueError(message)
        self._write(path, content.replace(defect.text, defect.by))
        try:
            self._check_import(defect)
            yield
        finally:
            self._write(path, content)

    def run_tests(self, tests: Sequence[str]) -> Results:
        """Run these tests, and return what they recorded."""
        results = self._folder / "build" / "planted.jsonl"
        results.unlink(missing_ok=True)
        options = (f"--results={results}", f"--timeout={LIMIT_S}", "--quiet", "--tb=no")
        self._run("-m", "pytest", "-p", "no:cacheprovider", *options, *tests)
        recorded = read(results)
        if recorded.end is None:
            message = f"pytest did not end by itself: {' '.join(tests)}"
            raise RuntimeError(message)
        return recorded

    def run_all_tests(self) -> Results:
        """Run what `make test` runs, and return what its stages recorded."""
        folder = self._folder / "build" / "test-results"
        shutil.rmtree(folder, ignore_errors=True)
        self._run("tests/run.py")
        stages = [read(folder / f"{stage.name}.jsonl") for stage in STAGES]
        return Results([phase for results in stages for phase in results.phases])

    def _run(self, *arguments: str) -> None:
        # Its exit code says less than what was recorded.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["PATH"] = f"{self._python.parent}:{environment['PATH']}:{ROOT / TOOLS / 'bin'}"
        command = [self._python, *arguments]
        subprocess.run(command, cwd=self._folder, env=environment, stdin=subprocess.DEVNULL, check=False)

    def _check_import(self, defect: Defect) -> None:
        """Raise RuntimeError unless the planted file is imported: otherwise every test would pass."""
        program = f"import importlib.util; print(importlib.util.find_spec({defect.module!r}).origin)"
        command = [self._python, "-c", program]
        said = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True).stdout.strip()
        if Path(said) != self._folder / defect.file:
            message = f"{defect.name}: {defect.module} is imported from {said}, not from the copy"
            raise RuntimeError(message)

    def _write(self, path: Path, content: str) -> None:
        path.write_text(content)
        # Python takes byte code for current whose file has the same second and size.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def _copy_checkout(folder: Path) -> None:
    """Clone, and bring along what is not committed."""
    subprocess.run(["git", "clone", "--quiet", "--shared", ROOT, folder], check=True)
    for path in _list_files("--modified", "--others", "--exclude-standard"):
        source, target = ROOT / path, folder / path
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
        else:
            target.unlink(missing_ok=True)
    (folder / TOOLS.parent).mkdir()
    if (ROOT / TOOLS).exists():
        (folder / TOOLS).symlink_to(ROOT / TOOLS)


def _list_files(*options: str) -> Sequence[str]:
    command = ["git", "ls-files", "-z", *options]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted({name for name in listed.split("\0") if name})


def _make_environment(folder: Path, source_roots: Sequence[Path]) -> None:
    """Make a virtual environment that imports `source_roots` first, then what is installed in ours.

    Tests start processes with environments of their own, which a variable would not reach. The .pth file of ours, which names
    the checkout, is not read: that happens in folders of site-packages alone, and ours is a mere entry of the path here.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    ours, theirs = (_site_packages(Path(prefix)) for prefix in (sys.prefix, folder))
    (theirs / "planted.pth").write_text("".join(f"{path}\n" for path in (*source_roots, ours)))
    programs = Path(sys.prefix) / "bin"
    for program in programs.iterdir():
        target = folder / "bin" / program.name
        if target.exists():
            continue
        with program.open("rb") as file:
            begins = file.read(2)
        if begins == b"#!":
            target.write_text(program.read_text().replace(str(programs), str(folder / "bin")))
            target.chmod(0o755)
        else:
            target.symlink_to(program)


def _site_packages(prefix: Path) -> Path:
    (found,) = prefix.glob("lib/python3*/site-packages")
    return found


def observe(copy: Copy, defect: Defect, passing: Set[str], *, whole: bool) -> Outcome:
    """Plant a defect and return which of the tests that are `passing` without it saw it."""
    started = time.monotonic()
    with copy.planted(defect):
        results = copy.run_all_tests() if whole else copy.run_tests(defect.seen_by)
    # One whose surroundings could not be had has seen nothing.
    failed = {
        phase.test: phase.failure.message
        for phase in results.phases
        if phase.failure is not None and phase.when == "call" and phase.test in passing
    }
    return Outcome(
        defect,
        [Sighting(test, message) for test, message in failed.items()],
        [name for name in defect.seen_by if not any(_is_case(test, name) for test in failed)],
        round(time.monotonic() - started, 1),
    )


def _is_case(test: str, name: str) -> bool:
    return test == name or test.startswith(f"{name}[")


def describe(outcome: Outcome) -> str:
    """Return the lines of the table for one defect."""
    defect = outcome.defect
    lines = [
        f"{'seen' if outcome.seen else 'NOT SEEN':8} {defect.name} ({defect.file}, {outcome.seconds:.0f} s)"
    ]
    lines += [f"  {sighting.test}: {_shown(sighting.message)}" for sighting in outcome.sightings]
    lines += [f"  not by {name}" for name in outcome.missed_by]
    return "\n".join(lines)


def _shown(message: str) -> str:
    """Return what fits a line of a message that may have many."""
    text = " ".join(message.split())
    return text if len(text) <= 160 else f"{text[:159]}…"


def main(arguments: Sequence[str]) -> int:
    """Plant what is named, or all. Returns 0 when the named tests of each saw it, 1 otherwise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    by_name = {defect.name: defect for defect in DEFECTS}
    parser.add_argument("name", nargs="*", help="plant these alone, each by itself; without a name, all")
    parser.add_argument("--list", action="store_true", help="say what there is to plant, and end")
    parser.add_argument(
        "--whole", action="store_true", help="run what `make test` runs with each, not its own tests alone"
    )
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.name if name not in by_name]:
        parser.error(f"there is no defect {', '.join(unknown)}; --list says which there are")
    defects = [by_name[name] for name in chosen.name] or list(DEFECTS)
    if chosen.list:
        say("\n".join(f"{defect.name}: {defect.suffered}" for defect in defects))
        return 0
    with tempfile.TemporaryDirectory(prefix="tidegate-defects-") as folder:
        copy = Copy(Path(folder).resolve() / "checkout")
        tests = sorted({test for defect in defects for test in defect.seen_by})
        say("== without a defect")
        passing = (copy.run_all_tests() if chosen.whole else copy.run_tests(tests)).passed
        outcomes: list[Outcome] = []
        for defect in defects:
            say(f"== {defect.name}: {defect.suffered}")
            outcomes.append(observe(copy, defect, passing, whole=chosen.whole))
    say("\n".join(describe(outcome) for outcome in outcomes))
    write_result(outcomes)
    return 0 if all(outcome.seen for outcome in outcomes) else 1


def write_result(outcomes: Sequence[Outcome]) -> None:
    """Write everything to build/planted-defects.json."""
    result = [{**asdict(outcome), "seen": outcome.seen} for outcome in outcomes]
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

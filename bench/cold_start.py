"""How long `make demo` takes from a fresh clone: with empty caches, and again when programs and images are there.

    python bench/cold_start.py [--folder DIR] [--cold-limit 500] [--warm-limit 60] [--skip-cold]

Clones the last commit into a new folder below DIR, which also holds all caches: of Tidegate, Go, uv and pip. Prints one
JSON document with the seconds of each step and of the longest commands; exits 1 when a run failed or took longer than its
limit. Needs root, as the demo does, and what it leaves is removed. `--skip-cold` measures the later run alone, with the
caches of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTED_COMMAND_S = 5
COMMAND_TIMEOUT_S = 1800.0
STEP_TITLE = re.compile(r"^ {1,2}\d+ {2}(?P<title>\S.*)$")
STEP_END = re.compile(r"^ +✓ (?P<seconds>[\d.]+) s$")
COMMAND_END = re.compile(r"^ +[\d.]+ s {2}(?P<task>.+): done in (?P<seconds>\d+) s$")


def main() -> int:
    """Measure both runs, or the later one alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="where the clone and the caches go; by default the temporary folder"
    )
    parser.add_argument("--cold-limit", type=float, default=500.0)
    parser.add_argument("--warm-limit", type=float, default=60.0)
    parser.add_argument("--skip-cold", action="store_true")
    options = parser.parse_args()
    limits = (
        {"warm": options.warm_limit}
        if options.skip_cold
        else {"cold": options.cold_limit, "warm": options.warm_limit}
    )
    with tempfile.TemporaryDirectory(prefix="tidegate-cold-", dir=options.folder) as folder:
        clone = Path(folder, "tidegate")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        environment = os.environ if options.skip_cold else _empty_caches(Path(folder))
        try:
            runs = {name: _time_demo(clone, Path(folder), environment) for name in limits}
        finally:
            _run_make("demo-down", clone, Path(folder), environment)
    print(
        json.dumps(
            {name: {**run, "limit_s": limits[name]} for name, run in runs.items()},
            indent=2,
            ensure_ascii=False,
        )
    )
    return 1 if any(float(str(run["seconds"])) > limits[name] for name, run in runs.items()) else 0


def _empty_caches(folder: Path) -> Mapping[str, str]:
    caches = {
        "TIDEGATE_HOME": folder / "home",
        "GOCACHE": folder / "go-build",
        "GOMODCACHE": folder / "go-modules",
        "UV_CACHE_DIR": folder / "uv",
        "PIP_CACHE_DIR": folder / "pip",
        "XDG_CACHE_HOME": folder / "cache",
    }
    # Go writes its modules read-only, and the folder has to be removed.
    return {**os.environ, **{name: str(path) for name, path in caches.items()}, "GOFLAGS": "-modcacherw"}


def _time_demo(clone: Path, folder: Path, environment: Mapping[str, str]) -> Mapping[str, object]:
    """Run the demo once, from nothing that runs, and end it again."""
    started = time.monotonic()
    lines = _run_make("demo", clone, folder, environment)
    seconds = time.monotonic() - started
    _run_make("demo-down", clone, folder, environment)
    steps, commands, title = dict[str, float](), dict[str, int](), ""
    for line in lines:
        if (match := STEP_TITLE.match(line)) is not None:
            title = match["title"]
        elif (match := STEP_END.match(line)) is not None:
            steps[title] = float(match["seconds"])
        elif (match := COMMAND_END.match(line)) is not None and int(match["seconds"]) >= LISTED_COMMAND_S:
            commands[match["task"]] = int(match["seconds"])
    return {"seconds": round(seconds, 1), "steps": steps, "commands": commands}


def _run_make(target: str, clone: Path, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Run a target in the clone and return its lines, which are also in a file; raise with the last ones if it fails."""
    log = folder / f"{target}.log"
    with log.open("w") as output:
        command = ["make", target, f"DEMO_ARGUMENTS=--state-dir {folder / 'cluster'}"]
        run = subprocess.run(
            command,
            cwd=clone,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    lines = log.read_text().splitlines()
    if run.returncode != 0:
        raise SystemExit("\n".join([f"make {target} ended with exit status {run.returncode}", *lines[-20:]]))
    return lines


if __name__ == "__main__":
    sys.exit(main())

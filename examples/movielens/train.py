"""Trains DIN on MovieLens-100k: python examples/movielens/train.py --output DIR --version 1 --version 2

Writes DIR/<version>/model.onnx, DIR/tables/*.parquet, DIR/events.parquet, DIR/held-out.parquet and
DIR/training/<version>.json.
The ratings are downloaded (2 MB) and belong to GroupLens: for research, not for redistribution.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from movielens_din.archive import ArchiveError, cache_root, fetch_wheel
from movielens_din.data import read_movielens
from movielens_din.export import ExportError
from movielens_din.recipe import make_version, prepare

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Runs the recipe; exit status 1 with one clear line when it cannot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument(
        "--version",
        action="append",
        required=True,
        type=version_number,
        help="version to train; may be repeated",
    )
    parser.add_argument(
        "--features", type=Path, default=HERE / "feature-compute.yaml", help="the FeatureCompute"
    )
    arguments = parser.parse_args()
    started = time.monotonic()

    def progress(message: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {message}", flush=True)

    try:
        progress("reading MovieLens-100k from the recbole wheel")
        data = read_movielens(fetch_wheel(cache_root()))
        progress(
            f"{len(data.users):,} users, {len(data.items):,} films, {len(data.ratings):,} ratings; computing features"
        )
        prepared = prepare(data, arguments.features, arguments.output)
        for version in arguments.version:
            make_version(prepared, version, progress)
    except (ArchiveError, ExportError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    return 0


def version_number(text: str) -> str:
    """A version as Inference.spec.model.version allows it."""
    if not text.isdecimal() or int(text) < 1 or text != str(int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return text


if __name__ == "__main__":
    sys.exit(main())

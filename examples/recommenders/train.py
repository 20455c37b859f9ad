"""Train a recommendation model on MovieLens-100k: python examples/recommenders/train.py --model deepfm --output DIR

Writes DIR/<version>/model.onnx, and prints the AUC on later ratings beside that of the film's mean rating.
The ratings are downloaded (2 MB) and belong to GroupLens: for research, not for redistribution.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "movielens"))

from movielens_din.archive import ArchiveError, cache_root, fetch_wheel
from movielens_din.data import read_movielens
from movielens_din.export import ExportError
from movielens_din.publish import write_version
from movielens_din.training import Training
from recommender_models.columns import read_events
from recommender_models.recipe import MODELS, train_model


def main() -> int:
    """Run a recipe; exit status 1 with one clear line when it cannot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder to write to")
    parser.add_argument("--version", default="1", help="version to write, which is the seed too")
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    started = time.monotonic()
    try:
        events = read_events(read_movielens(fetch_wheel(cache_root())))
        trained = train_model(
            arguments.model, events, Training(seed=int(arguments.version), epochs=arguments.epochs)
        )
    except (ArchiveError, ExportError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 1
    path = write_version(
        arguments.output, arguments.version, trained.graph.SerializeToString(deterministic=True)
    )
    areas = ", ".join(f"{output} {area:.4f}" for output, area in trained.areas.items())
    print(
        f"{path}: AUC {areas} on later ratings, liked {trained.baseline:.4f} by the film's mean; ONNX and jax differ by "
        f"{trained.difference:.1e} at most; {time.monotonic() - started:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Writes the build context of an image for Docker: `python -m tidegate_localcluster.stage_image NAME DIRECTORY`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tidegate_localcluster.binaries import default_home
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.image_recipes import ImageName
from tidegate_localcluster.images import ImageBuilder


def main(arguments: Sequence[str] | None = None) -> int:
    """Stage one image and print how to build it; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the build context of an image.")
    parser.add_argument("name", choices=[str(name) for name in ImageName])
    parser.add_argument("directory", type=Path, help="an empty or new folder")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository [default: here]")
    options = parser.parse_args(arguments)

    def print_progress(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        ImageBuilder(default_home(), options.root).stage_image(
            options.name, options.directory, print_progress
        )
    except LocalClusterError as error:
        print_progress(str(error))
        return 1
    print_progress(
        f"now: docker build -t {options.name} -f images/{options.name}/Dockerfile {options.directory}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

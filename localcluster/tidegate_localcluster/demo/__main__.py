"""`python -m tidegate_localcluster.demo`: the same as `tidegate demo`."""

from tidegate_localcluster.demo.cli import app

if __name__ == "__main__":
    app(prog_name="tidegate demo")

"""`python -m tidegate_localcluster`: the same as `tidegate local`."""

from tidegate_localcluster.cli import app

if __name__ == "__main__":
    app(prog_name="tidegate local")

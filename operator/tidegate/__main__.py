"""`python -m tidegate`."""

from tidegate.main import main

main()

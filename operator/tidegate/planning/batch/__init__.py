"""Plan batch Inferences: Jobs that score a table."""

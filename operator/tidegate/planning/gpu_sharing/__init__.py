"""Judge whether nodes share their GPUs as the pool declares."""

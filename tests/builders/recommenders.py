"""Untrained recommendation models of examples/recommenders, and requests for them."""

from __future__ import annotations

import numpy as np
import onnx

from movielens_din.training import Parameters
from recommender_models.columns import COLUMNS, ITEMS, NUMBERS, USER_COLUMNS, Events
from recommender_models.recipe import MODELS, export_model, make_parameters


def an_untrained_model(name: str, seed: int = 0) -> tuple[Parameters, onnx.ModelProto]:
    """Return random parameters and the graph that is exported with them."""
    parameters = make_parameters(MODELS[name].describe_parameters(), seed)
    return parameters, export_model(name, parameters)


def random_events(rows: int, length: int = 20, seed: int = 0) -> Events:
    """Return one user with candidates: the user's columns are equal in all rows, and a fifth of the history is padding."""
    random = np.random.default_rng(seed)
    ids = {
        name: np.full(rows, random.integers(0, entries))
        if name in USER_COLUMNS
        else random.integers(0, entries, rows)
        for name, entries in COLUMNS.items()
    }
    history = random.integers(1, ITEMS, (1, length))
    history[:, length - length // 5 :] = 0
    labels = (random.random(rows) < 0.5).astype(np.float32)
    return Events(
        ids,
        random.standard_normal((rows, len(NUMBERS))).astype(np.float32),
        np.repeat(history, rows, axis=0),
        labels,
        labels,
    )

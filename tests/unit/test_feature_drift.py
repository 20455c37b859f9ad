"""The population stability index, its bins, and profiles of columns in bounded memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tidegate.planning.features.column_profile import ColumnProfile, IdCounter, ValueSample
from tidegate.planning.features.drift import (
    DriftState,
    IdBins,
    NumberBins,
    compute_psi,
    estimate_chance_psi,
    judge_psi,
    make_number_bins,
)

COUNTS = hnp.arrays(np.int64, 5, elements=st.integers(0, 10**9)).filter(lambda counts: bool(counts.sum()))
NUMBERS = hnp.arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e6, 1e6))


class TestIndex:
    def test_a_value_checked_by_hand(self) -> None:
        """Shares 10.5/41 and 30.5/41 against the reverse: 2 * 20/41 * ln(30.5 / 10.5)."""
        psi = compute_psi(np.array([10, 30]), np.array([30, 10]))

        assert psi == pytest.approx(2 * 20 / 41 * math.log(30.5 / 10.5))
        assert psi == pytest.approx(1.0403, abs=1e-4)

    def test_a_bin_that_is_empty_in_one_set(self) -> None:
        """Shares 0.5/101 and 100.5/101 against 50.5/101 twice."""
        expected = (0.5 - 50.5) / 101 * math.log(0.5 / 50.5) + (100.5 - 50.5) / 101 * math.log(100.5 / 50.5)

        assert compute_psi(np.array([0, 100]), np.array([50, 50])) == pytest.approx(expected)

    @given(COUNTS, COUNTS)
    def test_it_is_symmetric_and_never_negative(self, training: np.ndarray, recent: np.ndarray) -> None:
        psi = compute_psi(training, recent)

        assert psi >= 0
        assert psi == pytest.approx(compute_psi(recent, training))

    @given(COUNTS)
    def test_equal_sets_have_none(self, counts: np.ndarray) -> None:
        assert compute_psi(counts, counts) == 0

    @given(COUNTS, st.integers(0, 4), st.integers(1, 10**9))
    def test_a_bin_that_gains_values_shows(self, counts: np.ndarray, place: int, gain: int) -> None:
        recent = counts.copy()
        recent[place] += gain

        assert compute_psi(counts, recent) > 0

    @pytest.mark.parametrize(
        ("recent", "message"),
        [([0, 0], "one of the sets has no values"), ([1, 2, 3], "want the same bins")],
    )
    def test_sets_that_cannot_be_compared(self, recent: list[int], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            compute_psi(np.array([1, 2]), np.array(recent))

    @pytest.mark.parametrize(
        ("psi", "state"),
        [
            (0.0, DriftState.STABLE),
            (0.0999, DriftState.STABLE),
            (0.1, DriftState.SHIFTED),
            (0.2499, DriftState.SHIFTED),
            (0.25, DriftState.DRIFTED),
            (None, DriftState.UNKNOWN),
        ],
    )
    def test_bounds_belong_to_the_worse_state(self, psi: float | None, state: DriftState) -> None:
        assert judge_psi(psi, None if psi is None else 0.001) is state

    @pytest.mark.parametrize(
        ("psi", "chance", "state"),
        [
            (0.319, 0.3, DriftState.TOO_FEW),
            (0.5999, 0.3, DriftState.TOO_FEW),
            (0.6, 0.3, DriftState.DRIFTED),
            (0.12, 0.07, DriftState.TOO_FEW),
            (0.12, 0.06, DriftState.SHIFTED),
            (0.0, 0.3, DriftState.STABLE),
        ],
    )
    def test_a_change_is_twice_what_chance_gives(self, psi: float, chance: float, state: DriftState) -> None:
        assert judge_psi(psi, chance) is state

    def test_the_index_by_chance_is_that_of_random_sets(self) -> None:
        random = np.random.default_rng(7)
        shares = np.full(10, 0.1)
        drawn = [
            compute_psi(random.multinomial(2000, shares), random.multinomial(1000, shares))
            for _ in range(400)
        ]

        chance = estimate_chance_psi(np.full(10, 200), np.full(10, 100))

        assert chance == pytest.approx(9 * (1 / 2000 + 1 / 1000))
        assert np.mean(drawn) == pytest.approx(chance, rel=0.1)


class TestBins:
    def test_deciles_make_bins_of_equal_shares(self) -> None:
        bins = make_number_bins(np.arange(1000.0))

        assert bins.edges.tolist() == [99, 199, 299, 399, 499, 599, 699, 799, 899]
        assert bins.count_values(np.arange(1000.0)).tolist() == [100] * 10
        assert bins.bin_labels[0] == "<= 99"
        assert bins.bin_labels[-1] == "> 899"

    def test_a_frequent_value_has_a_bin_of_its_own(self) -> None:
        training = np.concatenate((np.zeros(500), np.arange(1.0, 501.0)))

        bins = make_number_bins(training)

        assert bins.count_values(np.array([-1.0, 0.0, 0.0, 0.5]))[:3].tolist() == [1, 2, 1]
        assert bins.count_values(training)[:2].tolist() == [0, 500]

    def test_a_constant_can_change_in_both_directions(self) -> None:
        bins = make_number_bins(np.full(50, 3.0))

        assert [bins.count_values(np.array([value])).tolist() for value in (2.0, 3.0, 4.0)] == [
            [1, 0, 0],
            [0, 1, 0],
            [0, 0, 1],
        ]

    def test_the_bin_of_a_single_value_is_named_by_it(self) -> None:
        assert make_number_bins(np.full(50, 5.0)).bin_labels == ("< 5", "= 5", "> 5")
        frequent = np.concatenate((np.full(500, 5.0), np.arange(6.0, 506.0)))
        assert make_number_bins(frequent).bin_labels[:3] == ("< 5", "= 5", "<= 105")
        assert make_number_bins(np.repeat((0.0, 1.0), 50)).bin_labels == ("< 0", "= 0", "< 1", "= 1", "> 1")

    def test_labels_have_the_digits_that_they_need(self) -> None:
        labels = make_number_bins(np.arange(1_700_000_000.0, 1_700_000_100.0)).bin_labels

        assert labels[:2] == ("<= 1.70000001e+09", "<= 1.70000002e+09")
        assert labels[-1] == "> 1.70000009e+09"

    @given(NUMBERS, NUMBERS)
    def test_every_number_is_in_a_bin(self, training: np.ndarray, recent: np.ndarray) -> None:
        bins = make_number_bins(training)

        for values in (training, recent):
            assert bins.count_values(values).sum() == len(values)
        assert len(bins.edges) + 1 == len(set(bins.bin_labels)) == len(bins.bin_labels)
        assert compute_psi(bins.count_values(training), bins.count_values(training)) == 0

    def test_without_training_there_is_one_bin(self) -> None:
        bins = make_number_bins(np.empty(0))

        assert (bins.bin_labels, bins.count_values(np.array([1.0, 2.0])).tolist()) == (("any",), [2])

    def test_ids_without_a_bin_are_counted_together(self) -> None:
        bins = IdBins(np.array([-5, 7]))

        assert bins.count_values(np.array([7, 7, 8, -5, 9, -6])).tolist() == [1, 2, 3]
        assert bins.bin_labels == ("-5", "7", "others")
        assert IdBins(np.empty(0, dtype=np.int64)).count_values(np.array([1, 2])).tolist() == [2]


class TestProfiles:
    def test_a_sample_is_exact_until_it_is_full(self) -> None:
        sample = ValueSample(np.random.default_rng(0), size=10)
        sample.add_values(np.arange(4.0))
        sample.add_values(np.arange(4.0, 10.0))

        assert sorted(sample.values) == list(range(10))

    def test_a_full_sample_is_uniform(self) -> None:
        """In a list of 50 elements with 49 zeros of padding, a sample must not have only elements of one place."""
        sample = ValueSample(np.random.default_rng(0), size=5_000)
        for _ in range(20):
            sample.add_values(np.tile(np.arange(50.0), 100))

        assert len(sample.values) == 5_000
        assert sample.values.mean() == pytest.approx(24.5, abs=1.0)
        assert np.bincount(sample.values.astype(int), minlength=50).min() > 60

    def test_ids_are_counted_exactly_until_there_are_too_many(self) -> None:
        counter = IdCounter(capacity=4)
        counter.add_values(np.array([9, 9, 1]))
        counter.add_values(np.array([1, 9, 5, 7]))

        assert (counter.distinct, counter.is_exact) == (4, True)
        assert counter.select_frequent(2).tolist() == [1, 9]
        assert counter.select_frequent(3).tolist() == [1, 5, 9]

    @given(
        st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=60), min_size=1, max_size=20),
        st.integers(4, 40),
    )
    def test_an_id_that_is_frequent_enough_stays(self, batches: list[list[int]], capacity: int) -> None:
        counter = IdCounter(capacity)
        for batch in batches:
            counter.add_values(np.array(batch))

        values = [value for batch in batches for value in batch]
        bound = 2 * len(values) / capacity
        frequent = {value for value in values if values.count(value) > bound}
        assert frequent <= set(counter.select_frequent(capacity).tolist())
        assert counter.distinct <= len(set(values))
        if counter.is_exact:
            assert counter.distinct == len(set(values))

    @given(st.lists(NUMBERS, min_size=1, max_size=5))
    def test_moments_of_batches_are_those_of_all_values(self, batches: list[np.ndarray]) -> None:
        profile = ColumnProfile(NumberBins(np.array([0.0])), default=None)
        for batch in batches:
            profile.add_batch(batch, row_count=len(batch), missing_count=1)

        values = np.concatenate(batches)
        assert profile.mean == pytest.approx(values.mean(), rel=1e-9, abs=1e-6)
        assert profile.standard_deviation == pytest.approx(values.std(), rel=1e-6, abs=1e-6)
        assert (profile.value_count, profile.missing_count) == (len(values), len(batches))
        assert profile.bin_counts.tolist() == [int((values <= 0).sum()), int((values > 0).sum())]

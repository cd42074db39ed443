# SPDX-License-Identifier: Apache-2.0
"""Orders of epochs: permutations that depend on seed and epoch alone."""

import warnings

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from m2flow.data.shuffle import permutation


def splitmix(x: int) -> int:
    """The finalizer in Python's own integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def by_hand(num_items: int, seed: int, epoch: int) -> list[int]:
    golden = 0x9E3779B97F4A7C15
    key = splitmix((splitmix((seed + golden) % 2**64) + epoch * golden) % 2**64)
    return sorted(range(num_items), key=lambda i: splitmix(((i + 1) * golden + key) % 2**64))


@given(st.integers(0, 300), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_an_order_is_what_plain_integers_give(num_items: int, seed: int, epoch: int):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert permutation(num_items, seed=seed, epoch=epoch).tolist() == by_hand(num_items, seed, epoch)


def test_the_finalizer_gives_the_published_first_number():
    # SplitMix64 seeded with 0 begins with this number.
    assert splitmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


def test_every_item_comes_once():
    assert sorted(permutation(1000, seed=3, epoch=7).tolist()) == list(range(1000))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {permutation(50, seed=s, epoch=e).tobytes() for s in range(10) for e in range(10)}
    assert len(orders) == 100


def test_items_are_spread_evenly_over_places():
    first = np.array([permutation(10, seed=0, epoch=e)[0] for e in range(2000)])
    counts = np.bincount(first, minlength=10)
    # Chi-squared with 9 degrees of freedom exceeds 27.9 once in a thousand.
    assert ((counts - 200) ** 2 / 200).sum() < 27.9

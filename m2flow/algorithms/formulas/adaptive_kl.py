# SPDX-License-Identifier: Apache-2.0
"""A learning rate that follows the divergence of each step."""


def adapted_rate(
    rate: float, kl: float, *, desired: float, factor: float = 1.5, least: float = 1e-5, most: float = 1e-2
) -> float:
    """The next rate: down by ``factor`` if ``kl`` > 2 ``desired``, up if 0 < ``kl`` < ``desired`` / 2 (rsl_rl).

    A divergence of exactly 0 leaves it: nothing was learnt about the step. ``kl`` is the mean over states of KL(old,
    new); ``least`` and ``most`` bound what it moves to.
    """
    if kl > 2 * desired:
        return max(least, rate / factor)
    if 0 < kl < desired / 2:
        return min(most, rate * factor)
    return rate

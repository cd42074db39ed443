# SPDX-License-Identifier: Apache-2.0
"""One learner on many ranks: who computes what, what they tell each other, and how each keeps a part of the weights."""

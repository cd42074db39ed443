# SPDX-License-Identifier: Apache-2.0
"""How a policy's weights move from its learner to its rollouts."""

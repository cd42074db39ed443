# SPDX-License-Identifier: Apache-2.0
"""Parts of policies that control: networks, what their outputs mean as actions, statistics of observations."""

# SPDX-License-Identifier: Apache-2.0
"""Packed rows of a training batch: layout, micro-batches, log-probs, values."""

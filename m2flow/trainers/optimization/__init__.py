# SPDX-License-Identifier: Apache-2.0
"""The optimizer and its learning rate."""

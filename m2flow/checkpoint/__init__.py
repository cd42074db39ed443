# SPDX-License-Identifier: Apache-2.0
"""Saving and resuming runs."""

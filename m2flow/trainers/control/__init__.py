# SPDX-License-Identifier: Apache-2.0
"""Ticks of environments as a workload."""

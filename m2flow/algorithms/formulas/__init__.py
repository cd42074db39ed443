# SPDX-License-Identifier: Apache-2.0
"""The formulas that several algorithms share."""

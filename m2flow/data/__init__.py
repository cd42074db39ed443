# SPDX-License-Identifier: Apache-2.0
"""Prompts, samples and data sets."""

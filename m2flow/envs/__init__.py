# SPDX-License-Identifier: Apache-2.0
"""Environments: one file for each simulator, found by listing this directory."""

# SPDX-License-Identifier: Apache-2.0
"""Metrics, spans and the report: what a person sees of a run."""

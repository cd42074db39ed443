# SPDX-License-Identifier: Apache-2.0
"""The m2flow command."""

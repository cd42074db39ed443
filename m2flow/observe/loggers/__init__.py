# SPDX-License-Identifier: Apache-2.0
"""One metric logger a file."""

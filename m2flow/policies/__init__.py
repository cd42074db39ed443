# SPDX-License-Identifier: Apache-2.0
"""One policy a file."""

# SPDX-License-Identifier: Apache-2.0
"""One reward a file."""

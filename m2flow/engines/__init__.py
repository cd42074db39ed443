# SPDX-License-Identifier: Apache-2.0
"""One generation engine a file."""

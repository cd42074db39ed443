# SPDX-License-Identifier: Apache-2.0
"""What a user writes with: runs, roles, streams and iterations."""

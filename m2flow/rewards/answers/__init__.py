# SPDX-License-Identifier: Apache-2.0
"""Whether two written answers denote the same mathematical object. Nothing here imports torch or runs an answer."""

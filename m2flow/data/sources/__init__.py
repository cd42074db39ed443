# SPDX-License-Identifier: Apache-2.0
"""Where prompts come from, one source a file."""

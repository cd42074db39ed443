# SPDX-License-Identifier: Apache-2.0
"""One algorithm a file: its advantages and its loss, pure functions of tensors."""

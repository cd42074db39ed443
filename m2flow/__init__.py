# SPDX-License-Identifier: Apache-2.0
"""m2flow: write the training flow as a script; the system runs it."""

__version__ = "0.1.0"

# SPDX-License-Identifier: Apache-2.0
"""One trainer a file: forward, backward, optimizer step."""

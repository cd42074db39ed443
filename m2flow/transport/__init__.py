# SPDX-License-Identifier: Apache-2.0
"""How items move between processes: shared memory on one node, TCP between nodes."""

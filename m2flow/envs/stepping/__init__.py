# SPDX-License-Identifier: Apache-2.0
"""Where the rows of an environment are stepped: in this process, or in workers with shared memory."""

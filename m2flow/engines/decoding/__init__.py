# SPDX-License-Identifier: Apache-2.0
"""What a decoding engine is made of."""

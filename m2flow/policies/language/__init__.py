# SPDX-License-Identifier: Apache-2.0
"""What language-model policies are made of."""

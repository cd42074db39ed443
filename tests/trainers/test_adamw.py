# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch.nn import Parameter

from m2flow.errors import CheckpointError
from m2flow.trainers.optimization.adamw import Optimizer


def _optimizer(parameters: dict[str, Parameter], weight_decay: float = 0.0) -> Optimizer:
    return Optimizer({"policy": parameters}, betas=(0.9, 0.99), eps=1e-8, weight_decay=weight_decay)


def test_a_first_step_is_the_learning_rate_and_only_matrices_decay() -> None:
    matrix, vector = Parameter(torch.full((1, 2), 2.0)), Parameter(torch.full((2,), 2.0))
    optimizer = _optimizer({"m": matrix, "v": vector}, weight_decay=0.5)
    matrix.grad, vector.grad = torch.tensor([[3.0, -1.0]]), torch.tensor([3.0, -1.0])
    optimizer.step({"policy": 0.1})
    # The bias-corrected first step is sign(gradient); decay takes 0.1 * 0.5 of the weight.
    torch.testing.assert_close(matrix.data, torch.tensor([[1.8, 2.0]]))
    torch.testing.assert_close(vector.data, torch.tensor([1.9, 2.1]))
    assert matrix.grad is None


def test_a_hundred_steps_below_a_bfloat16_weights_last_bit_move_it() -> None:
    weight = Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = _optimizer({"w": weight})
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.collect()
        optimizer.step({"policy": 1e-4})
    torch.testing.assert_close(weight.data, torch.tensor([0.99], dtype=torch.bfloat16))
    assert torch.tensor([1.0]).bfloat16() - 1e-4 == 1, "a single step is lost in bfloat16"


def test_gradients_of_bfloat16_weights_add_up_in_float32() -> None:
    weight = Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = _optimizer({"w": weight})
    for gradient in [256.0] + [0.5] * 8:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.collect()
    assert optimizer.clip("policy", 0.0) == 260


def test_state_of_another_model_is_refused() -> None:
    state = _optimizer({"w": Parameter(torch.ones(2))}).state()
    with pytest.raises(CheckpointError, match="has 1 parameters of the policy, the model 1 by other names"):
        _optimizer({"x": Parameter(torch.ones(2))}).load_state(state)

# SPDX-License-Identifier: Apache-2.0
"""AdamW over the parts of a learner (policy, critic), with float32 masters of parameters that are narrower.

A bfloat16 parameter has 8 significant bits: a step of a typical learning rate is smaller than half its last one and
would be lost. The optimizer therefore works on a float32 copy, gradients of micro-batches add up in float32, and the
parameter is the rounded copy.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from m2flow.errors import CheckpointError


class Optimizer:
    """AdamW (Loshchilov and Hutter 2019) on named parameters. Vectors (norms, biases) are not decayed."""

    def __init__(
        self,
        parameters: Mapping[str, Mapping[str, Parameter]],
        *,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        self.parameters = parameters
        self.masters = {
            part: {k: p if p.dtype.itemsize >= 4 else Parameter(p.detach().float()) for k, p in named.items()}
            for part, named in parameters.items()
        }
        groups = [
            {"params": chosen, "weight_decay": decay, "part": part}
            for part, named in self.masters.items()
            for decay, chosen in _by_decay(list(named.values()), weight_decay)
        ]
        self._adamw = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=True)

    def collect(self) -> None:
        """After a micro-batch's backward pass: add the gradients of narrow parameters to their masters'."""
        for parameter, master in self._pairs():
            if master is parameter or parameter.grad is None:
                continue
            grad = parameter.grad.float()
            master.grad = grad if master.grad is None else master.grad.add_(grad)
            parameter.grad = None

    def clip(self, part: str, max_norm: float) -> float:
        """Scale the gradients of ``part`` down to a joint norm of ``max_norm`` (0: leave them); their norm before."""
        grads = [m.grad for m in self.masters[part].values() if m.grad is not None]
        norm = self._norm(grads)
        if max_norm and norm > max_norm:
            for grad in grads:
                grad.mul_(max_norm / (norm + 1e-6))
        return norm

    def _norm(self, gradients: list[Tensor]) -> float:
        return torch.nn.utils.get_total_norm(gradients).item() if gradients else 0.0

    def step(self, learning_rates: Mapping[str, float]) -> None:
        """One step, then forget the gradients."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rates[group["part"]]
        self._adamw.step()
        self.zero()
        self._publish()

    def zero(self) -> None:
        """Forget the gradients."""
        for parameter, master in self._pairs():
            parameter.grad = master.grad = None

    @torch.no_grad()
    def _publish(self) -> None:
        for parameter, master in self._pairs():
            if master is not parameter:
                parameter.copy_(master)

    def _pairs(self) -> list[tuple[Parameter, Parameter]]:
        return [(p, self.masters[part][k]) for part, named in self.parameters.items() for k, p in named.items()]

    def state(self) -> dict[str, Any]:
        """Moments, step counts and masters by part and name. A parameter that had no step yet has none."""
        return {
            part: {k: self._state_of(master, self.parameters[part][k]) for k, master in named.items()}
            for part, named in self.masters.items()
        }

    def _state_of(self, master: Parameter, parameter: Parameter) -> dict[str, Tensor]:
        held = dict(self._adamw.state.get(master, {}))
        return held if master is parameter else {**held, "master": master.detach()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from ``state``.

        Raises:
            CheckpointError: it has other parameters or shapes.
        """
        for part, named in self.masters.items():
            if sorted(state.get(part, {})) != sorted(named):
                raise CheckpointError(
                    f"the checkpoint's optimizer has {len(state.get(part, {}))} parameters of the {part}, the model "
                    f"{len(named)} by other names: resume with the model and options that the run began with"
                )
            for name, master in named.items():
                self._load_one(name, master, held=dict(state[part][name]))

    @torch.no_grad()
    def _load_one(self, name: str, master: Parameter, *, held: dict[str, Tensor]) -> None:
        wrong = [k for k, v in held.items() if v.dim() and v.shape != master.shape]
        if wrong:
            raise CheckpointError(f"optimizer state of {name}: expected shape {tuple(master.shape)}, wrong in {wrong}")
        if "master" in held:
            master.copy_(held.pop("master"))
        moments = {k: v.to(master.device, copy=True) for k, v in held.items()}
        self._adamw.state.pop(master, None)
        if moments:
            self._adamw.state[master] = moments


def _by_decay(parameters: list[Parameter], weight_decay: float) -> list[tuple[float, list[Parameter]]]:
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    return [(decay, chosen) for decay, chosen in ((weight_decay, matrices), (0.0, vectors)) if chosen]

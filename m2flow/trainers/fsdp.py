# SPDX-License-Identifier: Apache-2.0
"""The trainer of many ranks: weights, gradients and optimizer divided by FSDP2, the global batch shared out."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Module, Parameter

from m2flow.algorithms.base import Batch, OffPolicy, Totals
from m2flow.errors import LearnerError
from m2flow.trainers import local
from m2flow.trainers.base import Workload
from m2flow.trainers.optimization import stages
from m2flow.trainers.optimization.plan import Minibatch
from m2flow.trainers.sharding import dtensors
from m2flow.trainers.sharding.deal import Turn, balance, deal
from m2flow.trainers.sharding.divided import Divided
from m2flow.trainers.sharding.ranks import Ranks
from m2flow.trainers.sharding.sharded_adamw import ShardedOptimizer

T = TypeVar("T")
_DTYPES = {None: None, "float32": torch.float32, "bfloat16": torch.bfloat16}


class Fsdp(local.Local):
    """What ``Local`` computes, on all ranks of the default process group, each of which holds a part of the weights.

    Every rank is given the same whole batch, and selects, orders, counts and decides as all others do. Only forward and
    backward passes are shared out: a rank computes some of the micro-batches, and what the others need of it (rows of
    log-probs and values, numbers, gradients) is added up. So no result depends on the number of ranks but for the order
    in which gradients are added.
    """

    max_ranks: ClassVar[int | None] = None

    class Config(local.Local.Config):
        """How the weights are updated, and what is traded between memory and communication."""

        microbatch_multiple: int | None = Field(default=None, ge=1)
        """Of which the number of micro-batches of a step is a multiple, so that ranks have equal numbers. Equal
        settings give equal micro-batches, and so equal bits, on any number of ranks. Left out: 8, or the number of
        ranks, whichever is larger."""
        compute_dtype: Literal["float32", "bfloat16"] | None = None
        """What models compute in; gradients are added up in float32. Left out, the type of the weights."""
        reshard_after_forward: bool = True
        """Drop a layer's whole weights between its forward and its backward pass: less memory, one more gathering."""
        reshard_after_backward: bool = True
        """Drop whole weights between the micro-batches of a step too."""
        reduce_every_microbatch: bool = False
        """Add gradients up over the ranks after each micro-batch instead of once a step: no rank holds whole ones."""

    def __init__(self, config: Any, algorithm: Any) -> None:
        super().__init__(config, algorithm)
        if isinstance(algorithm, OffPolicy):
            raise LearnerError(
                f"algorithm '{algorithm.name}' draws from a memory, which the trainer '{self.name}' does not share out "
                "among ranks: choose 'local'"
            )
        self._ranks: Ranks | None = None
        self._models: Divided | None = None

    @property
    def ranks(self) -> Ranks:
        """Who shares the work."""
        if self._ranks is None:
            self._ranks = Ranks()
        return self._ranks

    @property
    def models(self) -> Divided:
        """Made by ``adopt``."""
        if self._models is None:
            raise LearnerError("the trainer has no models yet: call adopt first")
        return self._models

    def adopt(self, modules: Sequence[Module]) -> None:
        """See ``Trainer.adopt``."""
        c = self.config
        options = {"dtype": _DTYPES[c.compute_dtype], "reshard_after_forward": c.reshard_after_forward}
        self._models = Divided(modules, self.ranks, **options)

    def call(self, module: Module, compute: Callable[[], T]) -> T:
        """See ``Trainer.call``."""
        return self.models.call(module, compute)

    def start(self, parameters: Mapping[str, Mapping[str, Parameter]]) -> None:
        """See ``Trainer.start``."""
        c = self.config
        options = {"betas": c.betas, "eps": c.eps, "weight_decay": c.weight_decay}
        self._optimizer = ShardedOptimizer(parameters, self.ranks, **options)

    def saved(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """See ``Trainer.saved``: this rank's parts (see ``sharding.shards``)."""
        return {k: dtensors.mark(v.to_local(), like=v) for k, v in _divided(tensors).items()}

    def restored(self, saved: Mapping[str, Any], *, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See ``Trainer.restored``: of this rank of as many ranks, or of one process."""
        divided = _divided(own)
        return {k: dtensors.restored(v, like=divided[k]) if k in divided else v for k, v in saved.items()}

    def gathered(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """See ``Trainer.gathered``."""
        return dtensors.gathered(_divided(tensors))

    def _plan(self, work: Workload, batch: Batch, *, seed: int, multiple: int = 1) -> list[Minibatch]:
        multiple = self.config.microbatch_multiple or max(8, self.ranks.num)
        return super()._plan(work, batch, seed=seed, multiple=multiple)

    def _turns(self, work: Workload, minibatch: Minibatch) -> list[Turn]:
        return deal(work, minibatch, rank=self.ranks.rank, num_ranks=self.ranks.num)

    def _computed(
        self, compute: stages.Compute, work: Workload, *, steps: list[Minibatch], like: Float[Tensor, "S T"]
    ) -> Float[Tensor, "S T"]:
        out = torch.zeros_like(like)
        for turn in [turn for minibatch in steps for turn in self._turns(work, minibatch)]:
            found = compute(turn.rows.tolist())
            if turn.index is not None:
                out[turn.rows] = found
        return self._total(out)

    def _total(self, tensor: Tensor) -> Tensor:
        return self.ranks.total(tensor)

    def _gradients(self, update: Any, minibatch: Minibatch, *, totals: Totals) -> dict[str, float]:
        """All ranks make all of their turns, whatever comes out: a loss that is not finite is found by all together."""
        turns = self._turns(update.work, minibatch)
        own: dict[int, dict[str, float]] = {}
        for turn in turns:
            reduces = self.config.reduce_every_microbatch or turn is turns[-1]
            self.models.before_backward(
                reduces=reduces, reshards=self.config.reshard_after_backward or turn is turns[-1]
            )
            loss, numbers = self._loss(update, turn.rows, totals=totals, sees=turn.index is not None)
            # One who only keeps company sends a gradient of zero back, not zero times a loss, which may be no number.
            loss.backward(torch.full_like(loss, turn.index is not None))
            if reduces:
                self.optimizer.collect()
            if turn.index is not None:
                own[turn.index] = numbers
        balanced = balance(update.work, minibatch, num_ranks=self.ranks.num)
        return {**self._summed(own), "learner/balance": balanced}

    def _summed(self, own: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
        """Over all micro-batches, in the order in which one process would add them up."""
        found = {int(index): numbers for given in self.ranks.gather(own) for index, numbers in given.items()}
        sums: dict[str, float] = defaultdict(float)
        for index in sorted(found):
            for key, value in found[index].items():
                sums[key] += value
        return sums


def _divided(tensors: Mapping[str, Tensor]) -> dict[str, DTensor]:
    return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}

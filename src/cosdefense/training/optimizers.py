"""Local training with any optimizer of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.optim import Optimizer

from .local_sgd import LocalSGD
from .task import Task

MakeOptimizer = Callable[..., Optimizer]  # (parameters, lr), and weight_decay where an experiment sets one


def adam(parameters: list[Tensor], lr: float, weight_decay: float = 0.0) -> Optimizer:
    """Kingma, Ba. Adam: A Method for Stochastic Optimization. ICLR 2015."""
    return torch.optim.Adam(parameters, lr, weight_decay=weight_decay)


def adamw(parameters: list[Tensor], lr: float, weight_decay: float = 0.0) -> Optimizer:
    """Loshchilov, Hutter. Decoupled Weight Decay Regularization. ICLR 2019."""
    return torch.optim.AdamW(parameters, lr, weight_decay=weight_decay)


def adagrad(parameters: list[Tensor], lr: float, weight_decay: float = 0.0) -> Optimizer:
    """Duchi, Hazan, Singer. Adaptive Subgradient Methods. JMLR 2011."""
    return torch.optim.Adagrad(parameters, lr, weight_decay=weight_decay)


SGD = "sgd"  # LocalSGD itself
OPTIMIZERS: dict[str, MakeOptimizer] = {"adam": adam, "adamw": adamw, "adagrad": adagrad}


@dataclass(frozen=True)
class LocalOptimizer(LocalSGD):
    """Local training by an optimizer that is new in every round: nothing is remembered from earlier ones.

    `make(parameters, lr)` makes it. The parameters are one vector, all weights of the model. Clients train one by one,
    on a GPU too.
    """

    make: MakeOptimizer = adam

    def __call__(
        self,
        task: Task,
        start: Float[Tensor, " d"],
        images: Shaped[Tensor, "steps b *shape"],
        labels: Shaped[Tensor, "steps b *targets"],
    ) -> Float[Tensor, " d"]:
        n, params, previous = task.layout.n_trainable, start, None
        weights = start[:n].detach().clone().requires_grad_()
        make = partial(self.make, weight_decay=self.weight_decay) if self.weight_decay else self.make
        optimizer = make([weights], self.lr)
        for batch, targets in zip(images, labels, strict=True):
            for hook in self.hooks:
                batch, targets = hook.batch(partial(task.loss, params), batch, targets)
            gradient, params = task.gradient(params, batch, targets)
            if self.ascend:
                gradient = -gradient
            weights.grad = gradient[:n]
            optimizer.step()
            params = torch.cat([weights.detach(), params[n:]])
            for hook in self.hooks:
                params = hook.step(params, gradient, previous, task.layout, self.lr)
            if self.hooks:
                weights.data.copy_(params[:n])
            previous = gradient
        return params - start

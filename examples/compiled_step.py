"""Compiles a whole training step, collectives included, into one graph.

    securecoll keygen my.key
    SECURECOLL_KEY_FILE=my.key torchrun --nproc-per-node 2 examples/compiled_step.py

Functional collectives are operators to torch.compile: they stay in the graph, and only their kernels are ours. The
default compiler needs a C++ compiler at run time and takes a while; --backend=aot_eager shows the same without one.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from digits import accuracy, claim, load, perceptron
from torch import Tensor, nn

BATCH, EPOCHS, RATE = 64, 15, 0.3

Weights = dict[str, Tensor]


def main(backend: str) -> int:
    """The program; its exit status is 0 when all that it claims is true."""
    dist.init_process_group("securecoll")
    rank, ranks, world = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    torch.set_num_threads(1)
    images, digits, held_out, answers = load()
    model = perceptron()

    def loss_of(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    def step(weights: Weights, x: Tensor, y: Tensor) -> Weights:
        """Gradients of a rank's own images, averaged over ranks, and a step down."""
        gradients = torch.func.grad(loss_of)(weights, x, y)
        averaged = functional.all_reduce_coalesced(list(gradients.values()), "avg", world)
        return {name: w - RATE * g for (name, w), g in zip(weights.items(), averaged, strict=True)}

    graphs = 0

    def counted(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        nonlocal graphs
        graphs += 1
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    compiled = torch.compile(step, backend=counted, fullgraph=True)  # one graph, or an error
    start = {name: p.detach() for name, p in model.named_parameters()}
    eager = graph = start
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH)[:-1]:
            mine = batch.chunk(ranks)[rank]
            graph = compiled(graph, images[mine], digits[mine])
            if epoch == 0:
                eager = step(eager, images[mine], digits[mine])
        if epoch == 0:
            apart = max(float((graph[name] - eager[name]).abs().max()) for name in graph)
            fine = claim(apart < 1e-4, f"after an epoch, parameters within {apart:.1e} of those of eager steps")
    fine &= claim(graphs == 1, f"compiled with {backend}: {graphs} graph, the all_reduce within")
    reached = accuracy(torch.func.functional_call(model, graph, (held_out,)), answers)
    fine &= claim(reached > 0.95, f"accuracy on {len(held_out)} held-out images: {reached:.1%}")
    dist.destroy_process_group()
    return 0 if fine else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backend", default="inductor")
    sys.exit(main(parser.parse_args().backend))

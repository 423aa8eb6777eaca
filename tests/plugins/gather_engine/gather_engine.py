"""An engine of someone else: every rank gathers the gradients of all, one parameter after another."""

from benchsuite.workloads.engine import Engine

ENGINE = Engine("gather", "gather_engine:train")


def train(model, recipe, global_batch):
    import torch
    import torch.distributed as dist

    from benchsuite.workloads.parallel.recipe import Parallelized
    from benchsuite.workloads.parallel.step import stepping_of

    group = recipe.ranks.data_group()

    def average():
        for parameter in model.parameters():
            every = [torch.empty_like(parameter.grad) for _ in range(group.size())]
            dist.all_gather(every, parameter.grad, group=group)
            parameter.grad.copy_(sum(every) / group.size())

    stepping = stepping_of(Parallelized(model, average=average), recipe, global_batch)
    return stepping.training(stepping.step, model, model)

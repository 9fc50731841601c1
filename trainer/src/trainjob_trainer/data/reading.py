"""The training data of a replica, as its recipe says: opened once, and read from a step on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainjob_trainer.data.batches import worker_batches
from trainjob_trainer.data.cache import Cache
from trainjob_trainer.data.part import Part, part_of
from trainjob_trainer.data.policy import Policy
from trainjob_trainer.data.shares import worker_iterators
from trainjob_trainer.data.source import TrainingSource
from trainjob_trainer.distribution.collective import gather
from trainjob_trainer.plan import batch_of_a_device
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.replica import Replica


def open_training_data(
    replica: Replica, strategy: Any, load: Callable[..., Any], recipe: Recipe
) -> TrainingSource:
    """Call the user's function; all workers do so together.

    Raises:
        InvalidConfiguration: as `TrainingSource` and `Cache.of`.
    """
    task = replica.task
    name = f"{replica.environment.name}-{task.replica}"
    cache = Cache.of(recipe.cache, name, reads_here=not task.is_coordinator)
    return TrainingSource(load, part_of(task), lambda number: gather(strategy, task, number), cache)


def policy_of(replica: Replica, source: TrainingSource, recipe: Recipe) -> Policy:
    """How the job's workers share it."""
    return source.policy(replica.task.num_workers, shuffle=recipe.shuffle, cache=recipe.cache)


def distributed_batches(
    replica: Replica, strategy: Any, source: TrainingSource, recipe: Recipe, step: int
) -> Any:
    """An endless iterator of this worker's batches from a step on; a chief's has one for each worker."""
    batch = recipe.global_batch or 0  # the recipe has been checked
    stream = source.stream(step=step, global_batch=batch, seed=recipe.seed, shuffle=recipe.shuffle)
    if replica.task.is_coordinator:
        return worker_iterators(strategy, stream, workers=replica.task.num_workers, batch=batch)
    teller = source.read_over(step, batch) if replica.task.is_writer else None

    def of_worker(context: Any) -> Any:
        share = source.share_of(Part(context.input_pipeline_id, context.num_input_pipelines))
        return worker_batches(
            stream,
            workers=share.count,
            worker=share.index,
            batch=batch_of_a_device(batch, strategy.num_replicas_in_sync),
            read_over=teller,
        )

    return iter(strategy.distribute_datasets_from_function(of_worker))

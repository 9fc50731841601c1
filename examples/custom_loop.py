"""A training loop of one's own: the run brings strategy, resume, checkpoints and the evaluator."""

import keras
import tensorflow as tf
from digits import scans

import trainjob_trainer

GLOBAL_BATCH = 64
TOTAL_STEPS = 200

run = trainjob_trainer.init()

with run.strategy.scope():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.Adam(2e-3)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

run.track(model=model, optimizer=optimizer)


def train_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Each worker's slice of every global batch, from the step on that an earlier run reached."""
    data = scans(heldout=False).cache().shuffle(1437, seed=1).repeat()
    data = data.skip(run.start_step * GLOBAL_BATCH)
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    return data.batch(context.get_per_replica_batch_size(GLOBAL_BATCH), drop_remainder=True).prefetch(2)


@tf.function
def train_step(iterator):
    def one_replica(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True)) / GLOBAL_BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    return run.strategy.reduce("SUM", run.strategy.run(one_replica, args=next(iterator)), axis=None)


def evaluate(_step: int) -> dict[str, float]:
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    for images, labels in scans(heldout=True).batch(256):
        accuracy.update_state(labels, model(images, training=False))
    return {"accuracy": float(accuracy.result())}


if run.is_evaluator:
    run.each_checkpoint(evaluate)
else:
    batches = iter(run.strategy.distribute_datasets_from_function(train_batches))
    for _ in run.steps(TOTAL_STEPS, checkpoint_every=50):
        run.report(loss=train_step(batches))

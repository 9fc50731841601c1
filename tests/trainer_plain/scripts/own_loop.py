"""A script without `fit`. Before its loop it runs something and evaluates, which is no training."""

import keras
import numpy as np
import tensorflow as tf

GLOBAL_BATCH = 4


class Smooth(keras.Model):
    """Its output is the slope of another, as in a model of physics: a gradient that isn't a training's."""

    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(1, activation="tanh")

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = self.inner(x)
        return tape.gradient(y, x)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
x, y = np.ones((8, 2), "float32"), np.ones((8, 2), "float32")
with strategy.scope():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, Smooth()(inputs))
    model.compile("sgd", "mse")
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
strategy.run(lambda: tf.constant(1.0))
model.evaluate(x, y, batch_size=GLOBAL_BATCH, verbose=0)
print("evaluated")
data = strategy.experimental_distribute_dataset(
    tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(GLOBAL_BATCH)
)


@tf.function
def step(batch):
    def on_replica(inputs, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(inputs, training=True) - targets) ** 2) / GLOBAL_BATCH
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(on_replica, args=batch), axis=None)


batches = iter(data)
for _ in range(3):
    step(next(batches))
print("trained", int(optimizer.iterations))

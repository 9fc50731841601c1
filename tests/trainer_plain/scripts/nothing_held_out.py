"""No validation data; and before `fit` it saves, which must not replace what a worker has saved."""

import sys

import keras
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
assert isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
print("replicas", strategy.num_replicas_in_sync, strategy.cluster_resolver.task_type)
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.save("untrained.keras")
try:
    model.fit(np.ones((4, 2)), np.ones((4, 1)))
finally:
    print("fit has ended")
sys.exit("after fit")

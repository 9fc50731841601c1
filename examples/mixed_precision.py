"""Train in bfloat16: half the memory and, on processors made for it, several times the speed.

Variables stay in float32, and so does what the softmax is computed of. With `mixed_float16`, for GPUs that
have no bfloat16, Keras scales the loss, and the scale decides on the gradients of all workers.
"""

import keras
from digits import heldout, train

from trainjob_trainer import train_and_evaluate


def model() -> keras.Model:
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, dtype="float32"),
        ]
    )
    net.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


if __name__ == "__main__":
    train_and_evaluate(model, train, heldout, epochs=15, global_batch=64)

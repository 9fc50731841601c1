"""Losses, steps and metrics in a table: each trains and scores with one process's numbers, or as stated.

Batches have 16 rows, which three workers don't divide; the last one has a single row.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from support.trainer.form_values import numbers, seen
from support.trainer.forms import form

ROWS, BATCH = 49, 16
X, Y = numbers(ROWS)
WEIGHTS = np.linspace(0.1, 3, ROWS).astype("float32")


def linear(**words):
    return layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.1), **words)


def run(scope, **cases):
    return {name: case(scope) for name, case in cases.items()}


def fit(model, *data, **words):
    history = model.fit(*data, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, **words)
    scored = model.evaluate(
        *data, batch_size=BATCH, verbose=0, return_dict=True, sample_weight=words.get("sample_weight")
    )
    return seen(model, history, scored=scored)


def compiled(loss, optimizer=None, metrics=(), data=(X, Y), **words):
    """A compiled loss, trained by Keras's own step."""

    def run(scope):
        with scope():
            model = keras.Sequential([keras.Input((4,)), linear(kernel_regularizer="l2")])
            chosen = optimizer() if optimizer else keras.optimizers.SGD(0.02)
            model.compile(chosen, loss, metrics=list(metrics))
        return fit(model, *data, **words)

    return run


class Linear(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = linear()
        self.tracker = keras.metrics.Mean(name="tracked")

    def call(self, inputs):
        return self.dense(inputs)


def own(value_of, factor=lambda: 1, **compile_words):
    """A step of the user's: `value_of` takes the model, the truth and the prediction."""

    class Own(Linear):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                value = value_of(self, y, self(x, training=True))
            gradients = tape.gradient(value, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            self.tracker.update_state(value * factor())
            return {"tracked": self.tracker.result()}

        def test_step(self, data):
            x, y = data
            self.tracker.update_state(value_of(self, y, self(x, training=False)) * factor())
            return {"tracked": self.tracker.result()}

    def run(scope):
        with scope():
            model = Own()
            model.compile(keras.optimizers.SGD(0.02), **compile_words)
        return fit(model, X, Y)

    return run


def of_rows(y, prediction):
    return tf.reduce_mean(tf.square(y - prediction), axis=1)


def mean(y, prediction):
    return tf.reduce_mean(tf.square(y - prediction))


def absolute(y, prediction):
    return tf.reduce_mean(tf.abs(y - prediction))


# Losses for `compile`.


def focal(y, prediction):
    probability = tf.sigmoid(prediction * tf.sign(y))
    return tf.reduce_mean(-tf.square(1 - probability) * tf.math.log(probability))


class OfUsers(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return ops.sum(ops.abs(y_true - y_pred), axis=-1)


def masked(reduction):
    def run(scope):
        lengths = np.concatenate([np.full(25, 2), np.full(24, 6)])
        ids = (np.arange(6) < lengths[:, None]) * (1 + np.arange(ROWS)[:, None] % 9)
        order = np.argsort(np.arange(ROWS) % 8, kind="stable")  # short and long ones in each batch
        with scope():
            model = keras.Sequential(
                [keras.Input((6,), dtype="int32"), layers.Embedding(10, 3, mask_zero=True), linear()]
            )
            model.compile(keras.optimizers.SGD(0.5), keras.losses.MeanSquaredError(reduction=reduction))
        return fit(model, ids[order], (ids[order] / 10.0)[:, :, None].astype("float32"))

    return run


def outputs(scope):
    with scope():
        inputs = keras.Input((4,))
        model = keras.Model(inputs, {"a": layers.Dense(1, name="a")(inputs), "b": linear(name="b")(inputs)})
        model.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights={"a": 2.0, "b": 1.0})
    return fit(model, X, {"a": Y, "b": Y + 1})


def added(loss):
    class Adding(layers.Layer):
        def call(self, inputs):
            self.add_loss(loss(inputs))
            return inputs

    def run(scope):
        with scope():
            model = keras.Sequential(
                [keras.Input((4,)), layers.Dense(3, activity_regularizer="l2"), Adding(), linear()]
            )
            model.compile(keras.optimizers.SGD(0.01), "mse")
        return fit(model, X, Y)

    return run


def computed(scope):
    class Own(Linear):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = ops.mean(ops.square(y_pred - y))
            self.tracker.update_state(loss)
            return loss

    with scope():
        model = Own()
        model.compile(keras.optimizers.SGD(0.02))
    return fit(model, X, Y)


@form()
def losses_of_keras(scope):
    kinds = keras.losses
    return run(
        scope,
        mse=compiled("mse", metrics=["mae", keras.metrics.RootMeanSquaredError()]),
        sample_weights=compiled("mse", sample_weight=WEIGHTS),
        class_weights=compiled("mse", data=(X, (Y > 0).astype("float32")), class_weight={0: 1.0, 1: 3.0}),
        sum=compiled(kinds.MeanAbsoluteError(reduction="sum"), lambda: keras.optimizers.SGD(0.001)),
        outputs=outputs,
    )


@form()
def losses_divided_by_something_else_than_rows(scope):
    kind = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    return run(
        scope,
        weights=compiled(kind, sample_weight=WEIGHTS),
        masked=masked("sum_over_batch_size"),
        masked_with_weights=masked("mean_with_sample_weight"),
    )


@form()
def losses_of_the_users(scope):
    return run(
        scope,
        one_number=compiled(mean),
        focal=compiled(focal),
        of_a_class=compiled(OfUsers()),
        compute_loss=computed,
        a_metric_of_one_number=compiled("mse", metrics=[absolute]),
    )


@form()
def losses_that_layers_add(scope):
    return run(
        scope,
        a_number_for_each_row=added(lambda inputs: 0.001 * ops.sum(ops.square(inputs), axis=1)),
        a_number=added(lambda inputs: 0.01 * ops.mean(ops.square(inputs))),
    )


@form()
def optimizers_that_look_at_gradients(scope):
    sgd = keras.optimizers.SGD
    return run(
        scope,
        clipnorm=compiled(mean, lambda: sgd(0.02, clipnorm=0.5)),
        accumulation=compiled(mean, lambda: sgd(0.02, gradient_accumulation_steps=2)),
        loss_scale=compiled(mean, lambda: keras.optimizers.LossScaleOptimizer(sgd(0.02), initial_scale=4.0)),
        embedding=embedding,
        not_of_the_model=hidden_optimizer,
    )


# Steps.


def replicas():
    return tf.distribute.get_strategy().num_replicas_in_sync


def embedding(scope):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.table, self.dense = layers.Embedding(9, 3), linear()

        def call(self, inputs):
            return self.dense(self.table(inputs)[:, 0])

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = mean(y, self(x, training=True))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    with scope():
        model = Own()
        model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit((X[:, :1] * 3).astype("int32") % 9, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return seen(model)


def hidden_optimizer(scope):
    class Own(Linear):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            OPTIMIZERS["one"].apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            self.tracker.update_state(loss)
            return {"tracked": self.tracker.result()}

    with scope():
        model = Own()
        model(X[:1])
        OPTIMIZERS["one"] = keras.optimizers.SGD(0.02)
        OPTIMIZERS["one"].build(model.trainable_variables)
        model.compile(loss="mse")
    return fit(model, X, Y)


OPTIMIZERS = {}


def on_batches(scope):
    with scope():
        model = keras.Sequential([keras.Input((4,)), linear()])
        model.compile(keras.optimizers.SGD(0.02), mean)
    losses = [model.train_on_batch(X[:8], Y[:8]) for _ in range(3)]
    return seen(model, losses=losses)


@form()
def own_steps_with_a_mean(scope):
    return run(
        scope,
        plain=own(lambda _, y, p: mean(y, p)),
        eager=own(lambda _, y, p: mean(y, p), run_eagerly=True),
        half=own(lambda _, y, p: 0.5 * (mean(y, p) + absolute(y, p))),
        on_batches=on_batches,
    )


@form()
def own_steps_with_what_a_graph_does_not_show(scope):
    return run(
        scope,
        l2=own(lambda m, y, p: mean(y, p) + 0.01 * tf.reduce_sum(tf.square(m.dense.kernel))),
        ratio=own(lambda _, y, p: tf.reduce_sum(tf.square(y - p)) / tf.cast(tf.size(p), tf.float32)),
        where=own(lambda _, y, p: tf.reduce_mean(tf.where(y < 1, tf.square(y - p), tf.abs(y - p)))),
        dot=own(lambda _, y, p: tf.tensordot([0.3, 0.7], tf.stack([mean(y, p), absolute(y, p)]), 1)),
        clip=own(lambda _, y, p: tf.clip_by_value(mean(y, p), 0.0, 1e6)),
    )


@form()
def own_steps_with_losses_of_keras(scope):
    return run(
        scope,
        mean=own(lambda m, y, p: m.compute_loss(y=y, y_pred=p), loss="mse"),
        sum=own(lambda _, y, p: 0.01 * keras.losses.MeanAbsoluteError(reduction="sum")(y, p)),
        several=own(lambda _, y, p: keras.losses.MeanSquaredError()(y, p) + 0.5 * absolute(y, p)),
    )


@form()
def own_steps_that_scale_by_themselves(scope):
    return run(
        scope,
        divided=own(lambda _, y, p: mean(y, p) / replicas(), replicas),
        average_loss=own(lambda _, y, p: tf.nn.compute_average_loss(of_rows(y, p)), replicas),
        of_a_batch=own(
            lambda m, y, p: (
                tf.nn.compute_average_loss(of_rows(y, p), global_batch_size=BATCH)
                + tf.nn.scale_regularization_loss(0.01 * tf.reduce_sum(tf.square(m.dense.kernel)))
            ),
            replicas,
        ),
        after_a_loss_of_keras=own(
            lambda m, y, p: (
                m.compute_loss(y=y, y_pred=p)
                + tf.nn.scale_regularization_loss(0.01 * tf.reduce_sum(tf.square(m.dense.kernel)))
            ),
            replicas,
            loss="mse",
        ),
    )


# What isn't a mean over rows: each worker has the value of its own rows.


def dice(y, prediction):
    y, prediction = tf.sigmoid(y), tf.sigmoid(prediction)
    return 1 - 2 * tf.reduce_sum(y * prediction) / tf.reduce_sum(y + prediction)


def of_positives(y, prediction):
    positive = tf.cast(y > 0, tf.float32)
    return tf.reduce_sum(positive * tf.square(y - prediction)) / tf.reduce_sum(positive)


class Largest(keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(ops.maximum(self.value, ops.max(y_true)))

    def result(self):
        return self.value + 0.0


def in_batch_negatives(_, y, prediction):
    scores = prediction * tf.transpose(y)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(y)[0]), scores))


@form(
    only=True,
    differs={
        "dice": ("a ratio of sums over each worker's rows", 0.1),
        "of_positives": ("each worker has its own number of positive rows", 1.0),
        "root": ("the root of each worker's mean", 0.5),
        "in_batch_negatives": ("each worker's rows are compared with each other", 1.0),
        "largest": ("the workers' largest values are summed", 5.0),
    },
)
def losses_and_metrics_of_each_workers_rows(scope):
    return run(
        scope,
        dice=compiled(dice),
        of_positives=compiled(of_positives),
        root=own(lambda _, y, p: tf.sqrt(mean(y, p))),
        in_batch_negatives=own(in_batch_negatives),
        largest=compiled("mse", metrics=[Largest()]),
    )

"""Models with steps, losses and metrics of their own."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from support.trainer.form_values import classes, numbers, seen
from support.trainer.forms import form


def small():
    return keras.Sequential([keras.Input((4,)), layers.Dense(6, activation="tanh"), layers.Dense(1)])


class OwnStep(keras.Model):
    """As in Keras's guide: the compiled loss, metrics updated by hand."""

    def __init__(self):
        super().__init__()
        self.network = small()

    def call(self, inputs):
        return self.network(inputs)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            prediction = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=prediction)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, prediction)
        return {metric.name: metric.result() for metric in self.metrics}


@form(killed=True)
def own_train_step_with_the_compiled_loss(scope):
    x, y = numbers()
    with scope():
        model = OwnStep()
        model.compile("sgd", "mse", metrics=["mae"])
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, validation_split=0.25, verbose=0))


@form(workers=3)
def functions_of_ones_own(scope):
    class Plain(OwnStep):
        def made(self, step):
            strategy = self.distribute_strategy

            @tf.function
            def on_devices(data):
                logs = strategy.run(step, args=(data,))
                return tf.nest.map_structure(lambda one: strategy.reduce("MEAN", one, None), logs)

            return lambda iterator: on_devices(next(iterator))

        def make_train_function(self, force=False):
            self.train_function = self.made(self.train_step)

        def make_test_function(self, force=False):
            self.test_function = self.made(self.test_step)

    x, y = numbers()
    with scope():
        model = Plain()
        model.compile("sgd", "mse")
    words = {"batch_size": 12, "epochs": 2, "shuffle": False, "validation_data": (x, y), "verbose": 0}
    return seen(validation=model.fit(x, y, **words).history["val_loss"])


@form(often=True)
def train_step_that_uses_its_metrics(scope):
    class Annealed(OwnStep):
        """The larger the error so far, the smaller the step."""

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                prediction = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=prediction)
            for metric in self.metrics:
                metric.update_state(*((loss,) if metric.name == "loss" else (y, prediction)))
            results = self.get_metrics_result()
            gradients = tape.gradient(loss, self.trainable_variables)
            gradients = [one / (1.0 + results["mae"]) for one in gradients]
            self.optimizer.apply(gradients, self.trainable_variables)
            return results

    x, y = numbers()
    with scope():
        model = Annealed()
        model.compile("sgd", "mse", metrics=["mae"])
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(workers=3)
def own_train_step_with_unequal_parts(scope):
    x, y = numbers(90)
    with scope():
        model = OwnStep()
        model.compile("sgd", "mse")
    model.fit(x, y, batch_size=15, epochs=2, shuffle=False, verbose=0)
    model.fit(x[:83], y[:83], batch_size=20, epochs=1, shuffle=False, verbose=0)
    return seen(model)


class Traced(OwnStep):
    """With a tf.function of its own, which outlasts the traces that Keras makes for each shape of a batch."""

    @tf.function(reduce_retracing=True)
    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        return tape.gradient(loss, self.trainable_variables)

    def train_step(self, data):
        self.optimizer.apply(self.gradients(*data), self.trainable_variables)
        return {"target": tf.reduce_mean(data[1])}


@form(often=True)
def traced_train_step_with_unequal_parts(scope):
    x, y = numbers(101)
    with scope():
        model = Traced()
        model.compile("sgd", "mse")
    model.fit(x, y, batch_size=15, epochs=2, shuffle=False, verbose=0)
    return seen(model)


@form()
def own_train_step_that_averages_its_loss(scope):
    class Averaging(OwnStep):
        def __init__(self):
            super().__init__()
            self.tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.tracker]

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

    x, y = numbers()
    with scope():
        model = Averaging()
        model.compile("sgd")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form()
def autoencoder_without_call(scope):
    class Autoencoder(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
            self.decoder = keras.Sequential([keras.Input((2,)), layers.Dense(4)])
            self.tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.tracker]

        def train_step(self, data):
            x, _ = data
            with tf.GradientTape() as tape:
                rest = self.decoder(self.encoder(x)) - x
                loss = tf.reduce_mean(tf.reduce_sum(tf.square(rest), axis=1))
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

    x, y = numbers()
    with scope():
        model = Autoencoder()
        model.compile(optimizer="adam")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(
    differs={
        "weights": ("each worker draws its own noise", 0.3),
        "history": ("each worker draws its own noise", 4.0),
    }
)
def variational_autoencoder(scope):
    class Variational(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = keras.Sequential([keras.Input((4,)), layers.Dense(4)])
            self.decoder = keras.Sequential([keras.Input((2,)), layers.Dense(4)])
            self.seeds = keras.random.SeedGenerator(3)
            self.tracker = keras.metrics.Mean(name="loss")

        def call(self, inputs):
            mean, log_variance = ops.split(self.encoder(inputs), 2, axis=1)
            noise = keras.random.normal(ops.shape(mean), seed=self.seeds)
            return self.decoder(mean + ops.exp(0.5 * log_variance) * noise), mean, log_variance

        def train_step(self, data):
            with tf.GradientTape() as tape:
                made, mean, log_variance = self(data, training=True)
                distance = ops.mean(ops.sum(ops.square(made - data), axis=1))
                divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
                loss = distance + ops.mean(ops.sum(divergence, axis=1))
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
            self.tracker.update_state(loss)
            return {"loss": self.tracker.result()}

        @property
        def metrics(self):
            return [self.tracker]

    x, _ = numbers()
    with scope():
        model = Variational()
        model.compile(optimizer="adam")
    return seen(model, model.fit(x, epochs=2, shuffle=False, verbose=0))


@form(workers=3, killed=True)
def gan_with_two_optimizers(scope):
    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.judge = keras.Sequential(
                [keras.Input((4,)), layers.Dense(4, activation="relu"), layers.Dense(1)]
            )
            self.maker = keras.Sequential([keras.Input((2,)), layers.Dense(4)])
            self.judge_loss = keras.metrics.Mean(name="judge_loss")
            self.maker_loss = keras.metrics.Mean(name="maker_loss")

        @property
        def metrics(self):
            return [self.judge_loss, self.maker_loss]

        def compile(self, judge_optimizer, maker_optimizer):
            super().compile()
            self.judge_optimizer, self.maker_optimizer = judge_optimizer, maker_optimizer

        def train_step(self, real):
            made_of = real[:, :2]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    tf.nn.softplus(-self.judge(real)) + tf.nn.softplus(self.judge(self.maker(made_of)))
                )
            self.judge_optimizer.apply_gradients(
                zip(tape.gradient(loss, self.judge.trainable_weights), self.judge.trainable_weights)
            )
            with tf.GradientTape() as tape:
                fooled = tf.reduce_mean(tf.nn.softplus(-self.judge(self.maker(made_of))))
            self.maker_optimizer.apply_gradients(
                zip(tape.gradient(fooled, self.maker.trainable_weights), self.maker.trainable_weights)
            )
            self.judge_loss.update_state(loss)
            self.maker_loss.update_state(fooled)
            return {"judge_loss": self.judge_loss.result(), "maker_loss": self.maker_loss.result()}

    x, _ = numbers()
    with scope():
        model = Gan()
        model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02))
    return seen(model, model.fit(x, epochs=2, shuffle=False, verbose=0))


@form()
def contrastive(scope):
    class Contrastive(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = small()
            self.similarity = keras.metrics.Mean(name="distance")

        def call(self, inputs):
            return self.encoder(inputs)

        def train_step(self, data):
            one, other = data
            with tf.GradientTape() as tape:
                distance = ops.mean(ops.square(self(one) - self(other)))
                loss = distance + ops.relu(1.0 - ops.mean(ops.square(self(one))))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            self.similarity.update_state(distance)
            return {"loss": loss, "distance": self.similarity.result()}

    x, _ = numbers()
    with scope():
        model = Contrastive()
        model.compile("sgd")
    return seen(model, model.fit(x, x + 0.1, epochs=2, shuffle=False, verbose=0))


@form(workers=3)
def distillation(scope):
    class Distiller(keras.Model):
        def __init__(self, student, teacher):
            super().__init__()
            self.student, self.teacher = student, teacher

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            soft = self.teacher(x, training=False)
            distance = ops.square(soft - y_pred)
            own = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
            return 0.5 * own + 0.5 * keras.losses.MeanSquaredError()(soft, y_pred) + 0.0 * ops.sum(distance)

        def call(self, inputs):
            return self.student(inputs)

    x, y = numbers()
    with scope():
        teacher = small()
        teacher.trainable = False
        model = Distiller(small(), teacher)
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(killed=True)
def own_compute_loss(scope):
    class Own(OwnStep):
        train_step = keras.Model.train_step

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = super().compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
            )
            return 2.0 * loss

    x, y = numbers()
    with scope():
        model = Own()
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, validation_split=0.25, verbose=0))


@form()
def own_compute_metrics(scope):
    class Own(OwnStep):
        train_step = keras.Model.train_step

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            results = super().compute_metrics(x, y, y_pred, sample_weight)
            return {**results, "twice": 2.0 * results["mae"]}

    x, y = numbers()
    with scope():
        model = Own()
        model.compile("sgd", "mse", metrics=["mae"])
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, validation_split=0.25, verbose=0))


@form(killed=True)
def own_get_metrics_result(scope):
    class Own(OwnStep):
        train_step = keras.Model.train_step

        def get_metrics_result(self):
            results = super().get_metrics_result()
            return {**results, "root": ops.sqrt(results["loss"])}

    x, y = numbers()
    with scope():
        model = Own()
        model.compile("sgd", "mse", metrics=["mae"])
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, validation_split=0.25, verbose=0))


@form()
def own_test_step(scope):
    class Own(OwnStep):
        train_step = keras.Model.train_step

        def test_step(self, data):
            x, y = data
            prediction = self(x, training=False)
            for metric in self.metrics:
                if metric.name != "loss":
                    metric.update_state(y, 2 * prediction)
            return {metric.name: metric.result() for metric in self.metrics if metric.name != "loss"}

    x, y = numbers()
    with scope():
        model = Own()
        model.compile("sgd", "mse", metrics=["mae"])
    history = model.fit(x, y, epochs=2, shuffle=False, validation_data=(x[:40], y[:40]), verbose=0)
    return seen(model, history, evaluated=model.evaluate(x, y, verbose=0, return_dict=True))


@form(workers=3)
def own_predict_step(scope):
    class Own(OwnStep):
        train_step = keras.Model.train_step

        def predict_step(self, data):
            return {"doubled": 2 * self(data, training=False), "inputs": data}

    x, y = numbers()
    with scope():
        model = Own()
        model.compile("sgd", "mse")
    history = model.fit(x, y, batch_size=24, epochs=1, shuffle=False, verbose=0)
    return seen(model, history, predictions=model.predict(x, batch_size=24, verbose=0))


@form(killed=True)
def weights_in_an_own_step(scope):
    class Weighted(OwnStep):
        def train_step(self, data):
            x, y, weight = data
            with tf.GradientTape() as tape:
                prediction = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=prediction, sample_weight=weight)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return self.compute_metrics(x, y, prediction, weight)

    x, y = numbers()
    with scope():
        model = Weighted()
        model.compile("sgd", "mse", weighted_metrics=["mae"])
    weight = np.linspace(0.5, 1.5, len(x)).astype("float32")
    history = model.fit(x, y, sample_weight=weight, epochs=2, shuffle=False, verbose=0)
    return seen(model, history)


@form()
def metric_of_the_users(scope):
    class Positives(keras.metrics.Metric):
        def __init__(self, **words):
            super().__init__(name="positives", **words)
            self.count = self.add_variable((), "zeros", name="count")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.count.assign_add(ops.sum(ops.cast(ops.argmax(y_pred, axis=-1) > 0, "float32")))

        def result(self):
            return self.count

    x, y = classes()
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=[Positives()])
    history = model.fit(x, y, epochs=2, shuffle=False, verbose=0)
    return seen(model, history, scores=model.evaluate(x[:50], y[:50], verbose=0))

"""Models as people build them."""

import keras
import numpy as np
from keras import layers, ops

from support.trainer.form_values import classes, numbers, seen
from support.trainer.forms import form


@form(workers=3, killed=True)
def sequential_with_input(scope):
    x, y = numbers()
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="relu"), layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=24, epochs=2, shuffle=False, verbose=0)
    return seen(
        model, history, predictions=model.predict(x, verbose=0), evaluated=model.evaluate(x, y, verbose=0)
    )


@form()
def sequential_without_input(scope):
    x, y = numbers()
    with scope():
        model = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"])
    history = model.fit(x, y, epochs=2, shuffle=False, verbose=0)
    return seen(model, history, predictions=model.predict(x, verbose=0))


@form()
def classifier(scope):
    x, y = classes()
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(8), layers.Dense(3, activation="softmax")])
        model.compile("rmsprop", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, epochs=2, shuffle=False, validation_split=0.25, verbose=0)
    return seen(model, history, predictions=model.predict(x, verbose=0))


@form(killed=True)
def functional_with_dicts(scope):
    x, y = numbers()
    with scope():
        a, b = keras.Input((2,), name="a"), keras.Input((2,), name="b")
        joined = layers.Dense(6, activation="tanh")(layers.Concatenate()([a, b]))
        model = keras.Model(
            {"a": a, "b": b},
            {
                "price": layers.Dense(1, name="price")(joined),
                "sold": layers.Dense(1, activation="sigmoid", name="sold")(joined),
            },
        )
        model.compile(
            "sgd",
            {"price": "mse", "sold": "binary_crossentropy"},
            metrics={"price": ["mae"], "sold": ["accuracy"]},
            loss_weights={"price": 1.0, "sold": 0.5},
        )
    inputs = {"a": x[:, :2], "b": x[:, 2:]}
    history = model.fit(
        inputs, {"price": y, "sold": (y > 0).astype("float32")}, epochs=2, shuffle=False, verbose=0
    )
    return seen(model, history, predictions=model.predict(inputs, verbose=0))


@form(workers=3)
def functional_with_lists(scope):
    x, y = numbers()
    with scope():
        a, b = keras.Input((2,)), keras.Input((2,))
        joined = layers.Dense(6, activation="tanh")(layers.Concatenate()([a, b]))
        model = keras.Model([a, b], [layers.Dense(1)(joined), layers.Dense(2)(joined)])
        model.compile("sgd", ["mse", "mae"])
    inputs = [x[:, :2], x[:, 2:]]
    history = model.fit(inputs, [y, x[:, :2]], epochs=2, shuffle=False, verbose=0)
    return seen(model, history, predictions=model.predict(inputs, verbose=0))


@form(workers=3)
def nested_inputs(scope):
    x, y = numbers()
    with scope():
        a, b, c = keras.Input((2,)), keras.Input((1,)), keras.Input((1,))
        joined = layers.Concatenate()([a, b, c])
        model = keras.Model({"left": a, "right": [b, c]}, layers.Dense(1)(joined))
        model.compile("sgd", "mse")
    inputs = {"left": x[:, :2], "right": [x[:, 2:3], x[:, 3:]]}
    history = model.fit(inputs, y, epochs=2, shuffle=False, verbose=0)
    return seen(model, history, predictions=model.predict(inputs, verbose=0))


@form()
def subclassed(scope):
    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = layers.Dense(6, activation="tanh")
            self.last = layers.Dense(1)

        def call(self, inputs, training=None):
            return self.last(self.hidden(inputs))

    x, y = numbers()
    with scope():
        model = Network()
        model.compile("adam", "mse", metrics=["mae"])
    history = model.fit(x, y, epochs=2, shuffle=False, validation_data=(x[:40], y[:40]), verbose=0)
    return seen(model, history, predictions=model.predict(x, verbose=0))


@form(often=True)
def layer_that_adds_a_loss(scope):
    class Sparse(layers.Layer):
        def call(self, inputs):
            self.add_loss(0.01 * ops.mean(ops.abs(inputs)))
            return inputs

    x, y = numbers()
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(6), Sparse(), layers.Dense(1)])
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form()
def regularizers(scope):
    x, y = numbers()
    with scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(6, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(1e-3)),
                layers.Dense(1, kernel_regularizer=keras.regularizers.L1L2(1e-3, 1e-3)),
            ]
        )
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, validation_split=0.25, verbose=0))


@form(workers=3)
def lstm(scope):
    x, y = numbers(64, 12)
    with scope():
        model = keras.Sequential([keras.Input((6, 2)), layers.LSTM(5), layers.Dense(1)])
        model.compile("adam", "mse")
    history = model.fit(x.reshape(64, 6, 2), y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return seen(model, history)


@form(workers=(1, 2), refused="of a batch's 16 rows, and the model's input has room for exactly 16")
def stateful_rnn(scope):
    x, y = numbers(64, 12)
    with scope():
        model = keras.Sequential(
            [keras.Input((6, 2), batch_size=16), layers.GRU(5, stateful=True), layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    history = model.fit(x.reshape(64, 6, 2), y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return seen(model, history)


@form(workers=3)
def attention(scope):
    x, y = numbers(64, 12)
    with scope():
        inputs = keras.Input((6, 2))
        attended = layers.MultiHeadAttention(2, 4)(inputs, inputs)
        hidden = layers.LayerNormalization()(inputs + attended)
        model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden)))
        model.compile("sgd", "mse")
    history = model.fit(x.reshape(64, 6, 2), y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return seen(model, history)


@form(killed=True)
def embedding_with_a_smaller_last_batch(scope):
    random = np.random.default_rng(1)
    words, labels = random.integers(0, 20, (84, 5)), random.integers(0, 2, 84)
    with scope():
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                layers.Embedding(20, 4),
                layers.GlobalAveragePooling1D(),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return seen(model, model.fit(words, labels, batch_size=16, epochs=2, shuffle=False, verbose=0))


@form()
def embedding_of_positions(scope):
    """Keras's optimizers square each row of a table's gradient by itself; these rows all workers have."""

    class Positions(layers.Layer):
        def __init__(self, length, width):
            super().__init__()
            self.table = layers.Embedding(length, width)

        def call(self, inputs):
            return inputs + self.table(keras.ops.arange(keras.ops.shape(inputs)[-2]))

    random = np.random.default_rng(1)
    words, labels = random.integers(0, 20, (84, 5)), random.integers(0, 2, 84)
    with scope():
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                layers.Embedding(20, 4),
                Positions(5, 4),
                layers.Flatten(),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    return seen(model, model.fit(words, labels, batch_size=16, epochs=3, shuffle=False, verbose=0))


@form(
    differs={
        "weights": ("each worker normalizes by its own part of the batch", 0.2),
        "history": ("each worker normalizes by its own part of the batch", 0.5),
    },
    apart=("weights",),
)
def batch_normalization(scope):
    x, y = numbers()
    with scope():
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6), layers.BatchNormalization(), layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form()
def synchronized_batch_normalization(scope):
    x, y = numbers()
    with scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(6),
                layers.BatchNormalization(synchronized=True),
                layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(
    often=True,
    differs={
        "weights": ("each worker draws its own masks", 0.3),
        "history": ("each worker draws its own masks", 0.5),
    },
)
def dropout(scope):
    x, y = numbers()
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(16), layers.Dropout(0.4), layers.Dense(1)])
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(killed=True)
def dropout_with_one_mask_for_all_rows(scope):
    """Each worker draws what one process draws, so that what a restart makes of the random state is seen."""
    x, y = numbers()
    with scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(16),
                layers.Dropout(0.4, noise_shape=(1, 16)),
                layers.Dense(8),
                layers.Dropout(0.2, noise_shape=(1, 8), seed=11),
                layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, verbose=0))


@form(killed=True)
def random_numbers_without_a_seed(scope):
    """Keras creates the state behind them where the first one is drawn."""

    class Noise(layers.Layer):
        def call(self, inputs, training=False):
            return inputs + 0.5 * keras.random.normal((1, 4)) if training else inputs

    x, y = numbers()
    with scope():
        model = keras.Sequential([keras.Input((4,)), Noise(), layers.Dense(1)])
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(workers=(1, 2), killed=True)
def shuffled_with_a_seed(scope):
    x, y = numbers()
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, verbose=0))


@form(workers=3, killed=True)
def model_inside_a_model(scope):
    x, y = numbers()
    with scope():
        inner = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="relu")], name="inner")
        inputs = keras.Input((4,))
        model = keras.Model(inputs, layers.Dense(1)(inner(inputs)))
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, batch_size=24, epochs=2, shuffle=False, verbose=0))


@form()
def frozen_base_then_fine_tuning(scope):
    x, y = numbers()
    with scope():
        base = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="relu")])
        base.trainable = False
        model = keras.Sequential([keras.Input((4,)), base, layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    first = model.fit(x, y, epochs=1, shuffle=False, verbose=0)
    with scope():
        base.trainable = True
        model.compile(keras.optimizers.Adam(0.001), "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0), first=first.history)


@form(workers=3)
def convolutions(scope):
    x, y = classes(48, 36)
    with scope():
        model = keras.Sequential(
            [
                keras.Input((6, 6, 1)),
                layers.Conv2D(4, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    x = x.reshape(48, 6, 6, 1)
    return seen(model, model.fit(x, y, batch_size=24, epochs=2, shuffle=False, verbose=0))


@form()
def load_model_then_fit(scope):
    x, y = numbers()
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="relu"), layers.Dense(1)])
        model.compile("adam", "mse")
    first = model.fit(x, y, epochs=1, shuffle=False, verbose=0)
    model.save("model.keras")
    with scope():
        loaded = keras.models.load_model("model.keras")
    return seen(loaded, loaded.fit(x, y, epochs=2, shuffle=False, verbose=0), first=first.history)


@form(often=True, killed=True)
def load_model_outside_the_scope_then_fit(scope):
    x, y = numbers()
    model = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="relu"), layers.Dense(1)])
    optimizer = keras.optimizers.AdamW(0.01)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer, "mse")
    model.save("model.keras")
    loaded = keras.models.load_model("model.keras")
    return seen(loaded, loaded.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(killed=True)
def lora(scope):
    x, y = numbers()
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(8, name="wide"), layers.Dense(1)])
        model.get_layer("wide").enable_lora(2)
        model.compile("adam", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(
    differs={
        "weights": ("each worker draws its own noise", 0.5),
        "history": ("each worker draws its own noise", 1.0),
    }
)
def layer_with_a_seed_generator(scope):
    class Noise(layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(3)

        def call(self, inputs, training=None):
            return (
                inputs + 0.1 * keras.random.normal(ops.shape(inputs), seed=self.seeds) if training else inputs
            )

    x, y = numbers()
    with scope():
        model = keras.Sequential([keras.Input((4,)), Noise(), layers.Dense(1)])
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(killed=True)
def metrics_of_many_kinds(scope):
    x, y = classes(kinds=2)
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1, activation="sigmoid")])
        metrics = [
            "accuracy",
            keras.metrics.AUC(),
            keras.metrics.Precision(),
            keras.metrics.F1Score(threshold=0.5),
        ]
        model.compile("sgd", "binary_crossentropy", metrics=metrics, weighted_metrics=["accuracy"])
    history = model.fit(
        x, y[:, None].astype("float32"), epochs=2, shuffle=False, validation_split=0.25, verbose=0
    )
    return seen(model, history)


@form(
    often=True, only=True, differs={"weights": ("bfloat16 rounds the gradient of each worker's part", 1e-3)}
)
def mixed_precision(scope):
    x, y = numbers()
    with scope():
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(6, dtype="mixed_bfloat16"), layers.Dense(1, dtype="float32")]
        )
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=1, shuffle=False, verbose=0))


@form()
def loss_function_of_the_users(scope):
    def absolute(y_true, y_pred):
        return ops.mean(ops.abs(y_true - y_pred), axis=-1)

    x, y = numbers()
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", absolute)
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(often=True)
def loss_that_averages_by_itself(scope):
    def mean_of_all(y_true, y_pred):
        return ops.mean(ops.square(y_true - y_pred))

    x, y = numbers()
    with scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
        model.compile("sgd", mean_of_all)
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form()
def backbone_of_keras_applications(scope):
    x, y = classes(8, 32 * 32 * 3)
    with scope():
        base = keras.applications.MobileNetV3Small(
            input_shape=(32, 32, 3),
            include_top=False,
            weights=None,
            alpha=0.35,
            minimalistic=True,
            pooling="avg",
        )
        base.trainable = False
        inputs = keras.Input((32, 32, 3))
        model = keras.Model(inputs, layers.Dense(3, activation="softmax")(base(inputs, training=False)))
        model.compile("sgd", "sparse_categorical_crossentropy")
    history = model.fit(x.reshape(8, 32, 32, 3), y, batch_size=8, epochs=1, verbose=0)
    return seen(history=history, head=model.layers[-1].get_weights())

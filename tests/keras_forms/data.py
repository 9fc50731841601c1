"""Where examples come from."""

import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from support.trainer.form_values import classes, dense, numbers, seen
from support.trainer.forms import form


def batches(rows=96, size=24):
    return tf.data.Dataset.from_tensor_slices(numbers(rows)).batch(size)


@form(workers=3, killed=True)
def finite_dataset(scope):
    model = dense(scope)
    history = model.fit(batches(), validation_data=batches(48), epochs=2, verbose=0)
    return seen(model, history, predictions=model.predict(batches(), verbose=0))


@form(workers=3, killed=True)
def endless_dataset(scope):
    data = tf.data.Dataset.from_tensor_slices(numbers()).shuffle(96, seed=3).batch(24).repeat()
    model = dense(scope)
    return seen(model, model.fit(data, steps_per_epoch=3, epochs=2, verbose=0))


@form(killed=True)
def dataset_longer_than_an_epoch(scope):
    model = dense(scope)
    return seen(model, model.fit(batches().repeat(3), steps_per_epoch=3, epochs=3, verbose=0))


@form(often=True, killed=True)
def shuffled_dataset_used_up_within_the_epochs(scope):
    data = tf.data.Dataset.from_tensor_slices(numbers()).shuffle(96, seed=3).batch(48)
    model = dense(scope)
    return seen(model, model.fit(data, steps_per_epoch=2, epochs=3, verbose=0))


@form()
def endless_dataset_with_endless_validation(scope):
    model = dense(scope)
    history = model.fit(
        batches().repeat(),
        steps_per_epoch=3,
        epochs=2,
        validation_data=batches().repeat(),
        validation_steps=2,
        verbose=0,
    )
    return seen(model, history)


@form(killed=True)
def dataset_of_unknown_length_in_steps(scope):
    model = dense(scope)
    data = batches(240).filter(lambda x, y: tf.reduce_sum(x) > -1e6)
    return seen(model, model.fit(data, steps_per_epoch=3, epochs=3, verbose=0))


@form(often=True)
def dataset_of_unknown_length(scope):
    model = dense(scope)
    history = model.fit(batches().filter(lambda x, y: tf.reduce_sum(x) > -1e6), epochs=2, verbose=0)
    return seen(model, history)


@form(workers=(1, 2), killed=True)
def dataset_shuffled_with_a_seed(scope):
    data = tf.data.Dataset.from_tensor_slices(numbers()).shuffle(96, seed=3).batch(24)
    model = dense(scope)
    return seen(model, model.fit(data, epochs=2, verbose=0))


def shuffled(size=24, rows=96):
    return tf.data.Dataset.from_tensor_slices(numbers(rows)).shuffle(rows, seed=3).batch(size)


def fitted(model, *fits):
    """The history of several fits, each as a data set and further arguments."""
    found = [model.fit(data, verbose=0, **arguments).history for data, arguments in fits]
    return {name: [value for one in found for value in one[name]] for name in found[-1]}


@form(workers=3, killed=True)
def shuffled_dataset_in_three_fits(scope):
    data, model = shuffled(), dense(scope)
    return seen(model, losses=fitted(model, (data, {"epochs": 3}), (data, {"epochs": 2}), (data, {})))


@form(killed=True)
def shuffled_dataset_fitted_evaluated_and_fitted(scope):
    data, model = shuffled(), dense(scope)
    first = fitted(model, (data, {"epochs": 2}))
    score = model.evaluate(data, verbose=0)
    return seen(model, first=first, score=score, second=fitted(model, (data, {"epochs": 2})))


class EndsWith(keras.callbacks.Callback):
    def __init__(self, epoch, batch=None):
        super().__init__()
        self.epoch, self.batch, self.now = epoch, batch, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training |= epoch == self.epoch


class EndsWithin(EndsWith):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training |= (self.now, batch) == (self.epoch, self.batch)


@form()
def shuffled_dataset_after_fits_that_ended_early(scope):
    data, model = shuffled(), dense(scope)
    history = fitted(
        model,
        (data, {"epochs": 4, "callbacks": [EndsWith(1)]}),
        (data, {"epochs": 4, "initial_epoch": 1, "callbacks": [EndsWithin(2, 1)]}),
        (data, {"epochs": 2}),
    )
    return seen(model, losses=history)


@form(killed=True)
def validation_from_the_same_shuffle(scope):
    rows, model = shuffled(size=6), dense(scope)
    train, held = rows.skip(4), rows.take(4)
    history = fitted(
        model,
        (train, {"epochs": 3, "validation_data": held}),
        (train, {"epochs": 3, "validation_data": held.repeat(), "validation_steps": 5, "validation_freq": 2}),
        (held, {"validation_data": train}),
    )
    return seen(model, losses=history)


@form(killed=True)
def rows_repeated_before_they_are_batched(scope):
    data = tf.data.Dataset.from_tensor_slices(numbers(110)).shuffle(110, seed=3).repeat().batch(12)
    model = dense(scope)
    steps = {"steps_per_epoch": 5, "epochs": 2}
    return seen(model, losses=fitted(model, (data, steps), (data, steps)))


@form(killed=True)
def dataset_shuffled_after_it_is_repeated(scope):
    data = tf.data.Dataset.from_tensor_slices(numbers(50)).repeat().shuffle(20, seed=3).batch(12)
    model = dense(scope)
    return seen(model, losses=fitted(model, (data, {"steps_per_epoch": 5, "epochs": 3})))


@form(killed=True)
def shuffled_dataset_used_up_by_its_epochs_in_steps(scope):
    data, model = shuffled(), dense(scope)
    steps = {"steps_per_epoch": 4, "epochs": 2}
    return seen(model, losses=fitted(model, (data, steps), (data, steps)))


@form(killed=True)
def shuffled_dataset_of_unknown_length(scope):
    rows = tf.data.Dataset.from_tensor_slices(numbers())
    before = rows.filter(lambda x, y: x[0] > -1.0).shuffle(96, seed=3).batch(24)
    after = rows.shuffle(96, seed=4).filter(lambda x, y: x[0] > -1.0).batch(24)
    model = dense(scope)
    two = {"epochs": 2}
    return seen(model, losses=fitted(model, (before, two), (after, two), (before, two), (after, {})))


@form(killed=True)
def shuffled_datasets_concatenated_or_cached(scope):
    parts = shuffled(rows=48).concatenate(shuffled())
    model = dense(scope)
    return seen(
        model, losses=fitted(model, *((one, {"epochs": 2}) for one in (parts, parts, shuffled().cache())))
    )


class Epoch(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.number, self.variable, self.opened = 0, tf.Variable(0.0), []

    def on_epoch_begin(self, epoch, logs=None):
        self.number = epoch
        self.variable.assign(epoch)


def rows_by_the_epoch(epoch):
    x, y = numbers()

    def rows():
        epoch.opened.append(epoch.number)
        for row in np.random.default_rng(epoch.number).permutation(len(x)):
            yield x[row], y[row]

    spec = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
    return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(24)


@form(killed=True)
def generator_that_shuffles_by_the_epoch(scope):
    epoch, model = Epoch(), dense(scope)
    data, three = rows_by_the_epoch(epoch), {"epochs": 3, "callbacks": [epoch]}
    known = data.apply(tf.data.experimental.assert_cardinality(4))
    return seen(model, losses=fitted(model, (known, three), (data, three), (known, three)))


@form()
def generators_are_opened_as_often_as_in_one_process(scope):
    epoch, model = Epoch(), dense(scope)
    data, three = rows_by_the_epoch(epoch), {"epochs": 3, "callbacks": [epoch]}
    known = data.apply(tf.data.experimental.assert_cardinality(4))
    fitted(model, (data, three), (known, three))
    return seen(evaluated=model.evaluate(data, verbose=0), opened=epoch.opened)


@form(killed=True)
def data_that_depends_on_the_epoch(scope):
    epoch, model = Epoch(), dense(scope)
    rows = tf.data.Dataset.from_tensor_slices(numbers()).batch(24)
    by_variable = rows.map(lambda x, y: (x, y * (1 + epoch.variable)))

    def scaled(y):
        return (y * (1 + epoch.number)).astype("float32")

    by_python = rows.map(
        lambda x, y: (x, tf.ensure_shape(tf.numpy_function(scaled, [y], tf.float32), (None, 1)))
    )
    rows = tf.data.Dataset.from_tensor_slices(numbers())
    by_length = rows.filter(lambda x, y: x[0] > epoch.variable / 4).batch(24)
    three = {"epochs": 3, "callbacks": [epoch]}
    return seen(model, losses=fitted(model, (by_variable, three), (by_python, three), (by_length, three)))


@form(workers=(1, 2))
def dataset_from_a_generator(scope):
    x, y = numbers()

    def examples():
        yield from zip(x, y)

    spec = (tf.TensorSpec((4,), tf.float32), tf.TensorSpec((1,), tf.float32))
    data = tf.data.Dataset.from_generator(examples, output_signature=spec).batch(24)
    model = dense(scope)
    return seen(model, model.fit(data, epochs=2, verbose=0))


@form()
def dataset_with_weights(scope):
    x, y = numbers()
    weights = np.linspace(0.5, 1.5, 96).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(24)
    model = dense(scope, weighted_metrics=["mae"])
    return seen(model, model.fit(data, epochs=2, verbose=0))


@form(killed=True)
def dataset_of_dicts(scope):
    x, y = numbers()
    with scope():
        inputs = {"a": keras.Input((2,), name="a"), "b": keras.Input((2,), name="b")}
        model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()([inputs["a"], inputs["b"]])))
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices(({"a": x[:, :2], "b": x[:, 2:]}, y)).batch(24)
    return seen(model, model.fit(data, epochs=2, verbose=0))


@form(workers=3)
def tensors(scope):
    x, y = numbers()
    model = dense(scope)
    return seen(model, model.fit(tf.constant(x), tf.constant(y), epochs=2, shuffle=False, verbose=0))


def sentences(count=40):
    random = np.random.default_rng(2)
    return [random.integers(1, 20, length).tolist() for length in random.integers(2, 9, count)]


def words(scope):
    with scope():
        model = keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                layers.Embedding(20, 4, mask_zero=True),
                layers.GlobalAveragePooling1D(),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile("adam", "binary_crossentropy")
    return model


def labelled_sentences():
    found = sentences()
    return tf.data.Dataset.from_generator(
        lambda: ((one, [sum(one) % 2]) for one in found),
        output_signature=(tf.TensorSpec((None,), tf.int32), tf.TensorSpec((1,), tf.float32)),
    )


@form(
    workers=(1, 2),
    differs={"weights": ("one process counts one more iteration at the end of data of unknown length", 1e-3)},
    alone={"weights": ("as with several workers", 1e-3)},
)
def padded_batches(scope):
    model = words(scope)
    return seen(model, model.fit(labelled_sentences().padded_batch(8), epochs=2, verbose=0))


@form(
    differs={
        "weights": ("one process counts one more iteration at the end of data of unknown length", 5e-3),
        "history": ("both workers have the row of a batch of one", 1e-3),
    },
    alone={"weights": ("one process counts one more iteration at the end of data of unknown length", 5e-3)},
)
def bucketed_batches(scope):
    model = words(scope)
    data = labelled_sentences().bucket_by_sequence_length(lambda one, _: tf.shape(one)[0], [4, 7], [8, 8, 8])
    return seen(model, model.fit(data, epochs=2, verbose=0))


@form()
def padded_batches_without_an_embedding(scope):
    with scope():
        model = keras.Sequential([keras.Input((None, 1)), layers.SimpleRNN(3), layers.Dense(1)])
        model.compile("sgd", "mse")
    data = (
        labelled_sentences()
        .padded_batch(8)
        .map(lambda one, label: (tf.cast(one, tf.float32)[..., None] / 20, label))
    )
    return seen(model, model.fit(data, epochs=2, verbose=0))


@form(workers=3)
def ragged_batches(scope):
    model = words(scope)
    data = labelled_sentences().ragged_batch(8).map(lambda one, label: (one.to_tensor(), label))
    return seen(model, model.fit(data, epochs=1, verbose=0))


@form(workers=3)
def sparse_features(scope):
    x, y = numbers()
    x[np.abs(x) < 0.7] = 0
    model = dense(scope)
    data = tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(x), y)).batch(24)
    return seen(model, model.fit(data, epochs=2, verbose=0))


@form(often="killed", killed=True)
def python_generator(scope):
    x, y = numbers()

    def examples():
        while True:
            for begin in range(0, 96, 12):
                yield x[begin : begin + 12], y[begin : begin + 12]

    model = dense(scope)
    return seen(model, model.fit(examples(), steps_per_epoch=3, epochs=2, verbose=0))


class Pieces(keras.utils.PyDataset):
    def __init__(self, **words):
        super().__init__(**words)
        self.x, self.y = numbers()
        self.epochs = 0

    def __len__(self):
        return 4

    def __getitem__(self, number):
        part = slice(24 * number, 24 * number + 24)
        return self.x[part], self.y[part]

    def on_epoch_end(self):
        self.epochs += 1


@form(often=True, workers=(1, 3), killed=True)
def py_dataset(scope):
    data, model = Pieces(), dense(scope)
    history = model.fit(data, epochs=2, shuffle=False, verbose=0)
    return seen(model, history, epochs_ended=data.epochs)


@form()
def py_dataset_as_validation(scope):
    x, y = numbers()
    model = dense(scope)
    history = model.fit(x, y, batch_size=24, epochs=2, shuffle=False, validation_data=Pieces(), verbose=0)
    return seen(model, history, predictions=model.predict(Pieces(), verbose=0))


class Records:
    """Rows of numbers in files that each worker makes for itself, and removes."""

    def __init__(self, rows_of_files):
        self.folder = Path("records")
        self.folder.mkdir(exist_ok=True)
        x, y = numbers(sum(rows_of_files))
        turns = [
            file
            for turn in range(max(rows_of_files))
            for file, rows in enumerate(rows_of_files)
            if turn < rows
        ]
        writers = [
            tf.io.TFRecordWriter(str(self.folder / f"{file}.tfrecord"))
            for file, _ in enumerate(rows_of_files)
        ]
        for file, features, label in zip(turns, x, y, strict=True):
            facts = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=features)),
                "y": tf.train.Feature(float_list=tf.train.FloatList(value=label)),
            }
            writers[file].write(
                tf.train.Example(features=tf.train.Features(feature=facts)).SerializeToString()
            )
        for writer in writers:
            writer.close()
        self.files = len(writers)

    def read(self, **shuffled):
        spec = {"x": tf.io.FixedLenFeature((4,), tf.float32), "y": tf.io.FixedLenFeature((1,), tf.float32)}

        def parse(text):
            parsed = tf.io.parse_single_example(text, spec)
            return parsed["x"], parsed["y"]

        files = tf.data.Dataset.list_files("records/*.tfrecord", **(shuffled or {"shuffle": False}))
        return files.interleave(tf.data.TFRecordDataset, cycle_length=self.files).map(parse)

    def remove(self):
        for file in self.folder.iterdir():
            file.unlink()


def by_file(data):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return data.with_options(options)


@form()
def records(scope):
    found, model = Records([32, 32, 32]), dense(scope)
    outcome = seen(model, model.fit(found.read().batch(24).prefetch(1), epochs=2, verbose=0))
    found.remove()
    return outcome


@form(often=True, killed=True)
def records_by_file(scope):
    found, model = Records([25, 25, 25, 25]), dense(scope)
    data = by_file(found.read().batch(24).prefetch(1))
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    outcome = seen(
        model, history, evaluated=model.evaluate(data, verbose=0), predictions=model.predict(data, verbose=0)
    )
    found.remove()
    return outcome


@form(only=True, workers=3, killed=True)
def endless_records_by_file(scope):
    found, model = Records([32, 32, 32]), dense(scope)
    history = model.fit(by_file(found.read().batch(24).repeat()), steps_per_epoch=3, epochs=2, verbose=0)
    found.remove()
    return seen(model, history)


@form(workers=3)
def unequal_records_by_file(scope):
    found, model = Records([30, 20, 17, 15, 19]), dense(scope)
    history = model.fit(by_file(found.read(seed=3).shuffle(20, seed=4).batch(10)), epochs=2, verbose=0)
    outcome = seen(model, history, predictions=model.predict(by_file(found.read().batch(10)), verbose=0))
    found.remove()
    return outcome


@form(workers=3)
def evaluation_of_unequal_records_by_file(scope):
    found, model = Records([30, 20, 17, 15, 19]), dense(scope)
    data = by_file(found.read().batch(10))
    x, y = numbers(101)
    history = model.fit(x, y, shuffle=False, validation_data=data, epochs=2, verbose=0)
    outcome = seen(model, history, evaluated=model.evaluate(data, verbose=0))
    found.remove()
    return outcome


@form(
    differs={
        "weights": ("one process counts one more iteration at the end of data of unknown length", 1e-3),
        "history": ("as the weights", 1e-3),
    },
    alone={
        "weights": ("one process counts one more iteration at the end of data of unknown length", 1e-3),
        "history": ("as the weights", 1e-3),
    },
)
def padded_records_by_file(scope):
    found, model = Records([12, 17]), words(scope)
    sentences = found.read().map(
        lambda x, y: (tf.range(1, 3 + tf.cast(tf.abs(x[0]) * 5, tf.int32)), tf.cast(y > 0, tf.float32))
    )
    outcome = seen(model, model.fit(by_file(sentences.padded_batch(8)), epochs=2, verbose=0))
    found.remove()
    return outcome


@form(
    workers=(1, 3),
    refused="found no file of the training data",
)
def fewer_files_than_workers(scope):
    found, model = Records([96]), dense(scope)
    data = by_file(found.read().batch(24).repeat())
    return seen(model, model.fit(data, epochs=2, steps_per_epoch=4, verbose=0))


@form()
def image_folder(scope):
    random = np.random.default_rng(3)
    for kind in ("cats", "dogs"):
        Path("images", kind).mkdir(parents=True)
        for number in range(12):
            keras.utils.save_img(
                f"images/{kind}/{number}.png", random.integers(0, 255, (8, 8, 3)), scale=False
            )
    data = keras.utils.image_dataset_from_directory(
        "images", image_size=(8, 8), batch_size=8, shuffle=False, verbose=False
    )
    with scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                layers.Rescaling(1 / 255),
                layers.Conv2D(2, 3),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    outcome = seen(model, model.fit(data, epochs=2, verbose=0))
    for file in Path("images").rglob("*.png"):
        file.unlink()
    return outcome


@form()
def normalization_adapted_outside(scope):
    x, y = numbers()
    with scope():
        normalization = layers.Normalization()
        normalization.adapt(x)
        model = keras.Sequential([keras.Input((4,)), normalization, layers.Dense(1)])
        model.compile("sgd", "mse")
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


TEXTS = [
    "a good film",
    "bad",
    "really good",
    "a bad bad film",
    "good good",
    "really bad film",
    "a film",
    "good",
] * 6


@form()
def text_vectorization_in_map(scope):
    labels = np.array(["good" in one for one in TEXTS], "float32")[:, None]
    vectorize = layers.TextVectorization(max_tokens=10, output_sequence_length=4)
    with tf.device("/CPU:0"):
        with scope():
            model = keras.Sequential(
                [keras.Input((4,), dtype="int64"), layers.Embedding(10, 3), layers.Flatten(), layers.Dense(1)]
            )
            model.compile("sgd", "mse")
        vectorize.adapt(TEXTS)
    data = (
        tf.data.Dataset.from_tensor_slices((TEXTS, labels))
        .batch(16)
        .map(lambda text, label: (vectorize(text), label))
    )
    return seen(model, model.fit(data, epochs=2, verbose=0))


@form()
def text_vectorization_inside_the_model(scope):
    labels = np.array(["good" in one for one in TEXTS], "float32")[:, None]
    with scope():
        vectorize = layers.TextVectorization(max_tokens=10, output_sequence_length=4)
        vectorize.adapt(TEXTS)
        model = keras.Sequential(
            [
                keras.Input((1,), dtype="string"),
                vectorize,
                layers.Embedding(10, 3),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((np.array(TEXTS)[:, None], labels)).batch(16)
    return seen(model, model.fit(data, epochs=2, verbose=0))


@form()
def string_lookup_inside_the_model(scope):
    names = np.array(["red", "green", "blue"] * 16)[:, None]
    _, y = numbers(48)
    with scope():
        lookup = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
        inputs = keras.Input((1,), dtype="string")
        model = keras.Model(inputs, layers.Dense(1)(lookup(inputs)))
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((names, y)).batch(16)
    return seen(model, model.fit(data, epochs=2, verbose=0))


@form(often=True, workers=3)
def rows_that_nothing_divides(scope):
    x, y = numbers(101)
    model = dense(scope)
    return seen(model, model.fit(x, y, epochs=2, shuffle=False, verbose=0))


@form(workers=3)
def validation_rows_that_nothing_divides(scope):
    x, y = numbers(101)
    model = dense(scope)
    history = model.fit(x[:64], y[:64], epochs=2, shuffle=False, validation_data=(x[64:], y[64:]), verbose=0)
    return seen(
        model, history, predictions=model.predict(x, verbose=0), evaluated=model.evaluate(x, y, verbose=0)
    )


@form()
def augmentation_in_map(scope):
    images, labels = classes(32, 64)
    flip = layers.RandomFlip(seed=1)
    with scope():
        model = keras.Sequential(
            [keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(3, activation="softmax")]
        )
        model.compile("sgd", "sparse_categorical_crossentropy")
    data = tf.data.Dataset.from_tensor_slices((images.reshape(32, 8, 8, 1), labels)).batch(16)
    return seen(model, model.fit(data.map(lambda x, y: (flip(x, training=True), y)), epochs=1, verbose=0))


def out_of_order(rows=96):
    """Rows whose order changes from reading to reading, but for the options of tf.data."""

    def slow(index):
        wait = tf.py_function(lambda one: time.sleep(0.003 * (int(one) % 5)), [index], [])
        with tf.control_dependencies([wait]):
            return tf.identity(index)

    kept = tf.data.Dataset.range(rows).interleave(
        lambda index: tf.data.Dataset.from_tensors(index).map(slow),
        cycle_length=8,
        num_parallel_calls=8,
        deterministic=False,
    )
    return kept.map(slow, num_parallel_calls=8, deterministic=False)


@form(workers=3)
def pipelines_that_ask_for_disorder(scope):
    x, y = (tf.constant(one) for one in numbers())
    data = out_of_order().map(lambda index: (x[index], y[index]), num_parallel_calls=4).batch(96)
    options = tf.data.Options()
    options.deterministic = False
    data = data.with_options(options)
    model = dense(scope)
    history = model.fit(data, epochs=2, verbose=0)
    return seen(model, history, evaluated=model.evaluate(data, verbose=0))


@form()
def data_that_the_script_distributes(scope):
    model = dense(scope)
    strategy = (
        tf.distribute.get_strategy() if model.distribute_strategy is None else model.distribute_strategy
    )
    data, held = (strategy.experimental_distribute_dataset(batches(rows)) for rows in (96, 48))
    history = model.fit(data, validation_data=held, epochs=2, verbose=0)
    return seen(model, history, evaluated=model.evaluate(held, verbose=0))


def unequal_parts():
    """Two data sets, zipped, and a model that uses the mean of each."""
    parts = [tf.data.Dataset.from_tensor_slices(one) for one in numbers()]
    inputs = [keras.Input((4,)), keras.Input((1,))]
    means = [layers.Lambda(lambda x: tf.reduce_mean(x, 0, keepdims=True))(one) for one in inputs]
    model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()(means)))
    model.compile("sgd", loss=lambda y, p: tf.reduce_mean(y) - tf.reduce_mean(p))
    pairs = tf.data.Dataset.zip((parts[0].batch(24), parts[1].batch(12)))
    return model, pairs.map(lambda x, y: ((x, y), y))


@form(often=True, refused="the components of a batch have different numbers of rows")
def components_with_other_numbers_of_rows(scope):
    with scope():
        model, data = unequal_parts()
    return seen(history=model.fit(data, epochs=1, verbose=0))


@form(refused="the components of a batch have different numbers of rows")
def evaluated_components_with_other_numbers_of_rows(scope):
    with scope():
        model, data = unequal_parts()
    return seen(evaluated=model.evaluate(data, verbose=0))


@form(workers=3)
def noise_that_no_seed_makes_equal(scope):
    def noisy(x, y):
        return {"x": x, "noise": tf.random.normal([2])}, y

    with scope():
        inputs = {"x": keras.Input((4,), name="x"), "noise": keras.Input((2,), name="noise")}
        model = keras.Model(inputs, layers.Dense(1)(inputs["x"]))
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices(numbers()).map(noisy, num_parallel_calls=4).batch(24)
    return seen(model, model.fit(data, epochs=2, verbose=0))


def in_an_order_of_its_own(rows=96):
    # One worker has no other to read other rows than; its figures are those of no other run.
    order = np.random.RandomState(int.from_bytes(os.urandom(4), "big")).permutation(rows)
    return [one[order] for one in numbers(rows)]


@form(refused="read other rows than worker")
def arrays_in_an_order_of_its_own(scope):
    x, y = in_an_order_of_its_own()
    return seen(epochs=dense(scope).fit(x, y, batch_size=24, epochs=2, verbose=0).epoch)


@form(often=True, refused="read other rows than worker")
def rows_that_the_script_shares_out(scope):
    order = int.from_bytes(os.urandom(4), "big")  # as by the worker's number
    x, y = numbers()
    data = tf.data.Dataset.from_tensor_slices((np.roll(x, order % 95 + 1, 0), np.roll(y, order % 95 + 1, 0)))
    return seen(epochs=dense(scope).fit(data.batch(24), epochs=2, verbose=0).epoch)


@form(refused="read other rows than worker")
def generator_in_an_order_of_its_own(scope):
    def rows():
        yield from zip(*in_an_order_of_its_own())

    specs = (tf.TensorSpec([4]), tf.TensorSpec([1]))
    data = tf.data.Dataset.from_generator(rows, output_signature=specs).batch(24)
    return seen(epochs=dense(scope).fit(data, epochs=2, verbose=0).epoch)


@form(refused="read other rows than worker")
def plain_generator_in_an_order_of_its_own(scope):
    x, y = in_an_order_of_its_own()
    batches = ((x[i : i + 24], y[i : i + 24]) for i in range(0, 96, 24))
    return seen(epochs=dense(scope).fit(batches, verbose=0).epoch)


@form(refused="read other rows than worker")
def epochs_that_differ_after_the_first(scope):
    class Data(keras.utils.PyDataset):
        order = np.arange(96)

        def __len__(self):
            return 4

        def __getitem__(self, index):
            rows = self.order[24 * index : 24 * index + 24]
            return [one[rows] for one in numbers()]

        def on_epoch_end(self):
            self.order = np.random.RandomState(int.from_bytes(os.urandom(4), "big")).permutation(96)

    return seen(epochs=dense(scope).fit(Data(), epochs=3, verbose=0).epoch)


@form(refused="read other rows than worker")
def evaluated_rows_in_an_order_of_its_own(scope):
    x, y = in_an_order_of_its_own()
    return seen(evaluated=dense(scope).evaluate(x, y, batch_size=24, verbose=0))


@form(refused="read other rows than worker")
def predicted_rows_in_an_order_of_its_own(scope):
    predicted = dense(scope).predict(in_an_order_of_its_own()[0], batch_size=24, verbose=0)
    return seen(shape=predicted.shape)

"""An ordinary Keras script for several workers: nothing in it knows of TrainJob.

It runs by itself (`python plain_keras.py`) and, unchanged, as the command of a TrainJob.
"""

import os
from pathlib import Path

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

OUTPUT = Path(os.environ.get("TRAINJOB_OUTPUT_DIR", "output"))
EPOCHS = int(os.environ.get("EPOCHS", "8"))
GLOBAL_BATCH = 64


def build_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16.0
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=0
    )

    with strategy.scope():
        model = build_model()

    OUTPUT.mkdir(parents=True, exist_ok=True)
    history = model.fit(
        x_train,
        y_train,
        batch_size=GLOBAL_BATCH,
        epochs=EPOCHS,
        validation_data=(x_test, y_test),
        verbose=2,
        callbacks=[
            keras.callbacks.ModelCheckpoint(
                OUTPUT / "best.keras", monitor="val_accuracy", save_best_only=True
            ),
            keras.callbacks.EarlyStopping(monitor="val_accuracy", patience=5, restore_best_weights=True),
            keras.callbacks.TensorBoard(str(OUTPUT / "logs")),
        ],
    )
    model.save(OUTPUT / "model.keras")
    print(f"best held-out accuracy: {max(history.history['val_accuracy']):.4f}")


if __name__ == "__main__":
    main()

"""Every optimizer that Keras exports, and what they take."""

import keras

from support.trainer.form_values import dense, numbers, seen
from support.trainer.forms import form


def trained(scope, optimizer, **words):
    x, y = numbers(72)
    model = dense(scope, optimizer)
    history = model.fit(x, y, **{"batch_size": 24, "epochs": 1, "shuffle": False, "verbose": 0, **words})
    return seen(model, history, rate=float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)))


@form()
def sgd_with_momentum(scope):
    return trained(scope, lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True))


@form()
def adam(scope):
    return trained(scope, lambda: keras.optimizers.Adam(0.01, amsgrad=True))


@form()
def adamw(scope):
    return trained(scope, lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1))


@form()
def adamax(scope):
    return trained(scope, lambda: keras.optimizers.Adamax(0.01))


@form()
def adadelta(scope):
    return trained(scope, lambda: keras.optimizers.Adadelta(0.5))


@form()
def adafactor(scope):
    return trained(scope, lambda: keras.optimizers.Adafactor(0.05))


@form()
def adagrad(scope):
    return trained(scope, lambda: keras.optimizers.Adagrad(0.1))


@form()
def ftrl(scope):
    return trained(scope, lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.01))


@form()
def lamb(scope):
    return trained(scope, lambda: keras.optimizers.Lamb(0.01))


@form()
def lion(scope):
    return trained(scope, lambda: keras.optimizers.Lion(0.01))


@form()
def nadam(scope):
    return trained(scope, lambda: keras.optimizers.Nadam(0.01))


@form()
def rmsprop(scope):
    return trained(scope, lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True))


@form()
def muon(scope):
    return trained(scope, lambda: keras.optimizers.Muon(0.01))


@form(
    differs={
        "weights": ("Keras loses the first values of its averages where one process builds it in fit", 2.0),
        "history": ("as the weights", 1.0),
    },
    alone={"weights": ("as with several workers", 2.0), "history": ("as the weights", 1.0)},
)
def schedule_free_adamw(scope):
    return trained(scope, lambda: keras.optimizers.ScheduleFreeAdamW(0.01))


@form()
def schedule_free_adamw_built_before(scope):
    x, y = numbers(72)
    model = dense(scope, lambda: keras.optimizers.ScheduleFreeAdamW(0.01))
    with scope():
        model.optimizer.build(model.trainable_variables)
    return seen(model, model.fit(x, y, batch_size=24, epochs=1, shuffle=False, verbose=0))


@form()
def schedule(scope):
    rate = keras.optimizers.schedules.CosineDecay(0.1, 10, warmup_target=0.2, warmup_steps=3)
    return trained(scope, lambda: keras.optimizers.Adam(rate), epochs=2)


@form()
def clipped_by_norm(scope):
    return trained(scope, lambda: keras.optimizers.SGD(0.05, clipnorm=0.1))


@form()
def clipped_by_global_norm(scope):
    return trained(scope, lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.1))


@form()
def clipped_by_value(scope):
    return trained(scope, lambda: keras.optimizers.SGD(0.05, clipvalue=0.05))


@form()
def moving_averages(scope):
    optimizer = keras.optimizers.Adam
    return trained(scope, lambda: optimizer(0.01, use_ema=True, ema_overwrite_frequency=3))


@form(often=True)
def gradient_accumulation(scope):
    return trained(scope, lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2))


@form(often=True)
def loss_scale(scope):
    def build():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=1024.0)

    return trained(scope, build)


@form()
def loss_scale_factor(scope):
    return trained(scope, lambda: keras.optimizers.SGD(0.05, loss_scale_factor=8.0))


@form()
def weight_decay_with_excluded_variables(scope):
    def build():
        optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
        optimizer.exclude_from_weight_decay(var_names=["bias"])
        return optimizer

    return trained(scope, build)

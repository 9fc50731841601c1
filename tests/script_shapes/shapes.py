"""How people write the scripts around a training: stages, folds, guards, sweeps, exits, caught errors, what follows.

Run by one process, a script is the reference. Run as a job, with one worker and with two, it says the same, whether
it is killed or not; or it fails with its own exit code.

Those that are `often` run for each change, all others each night: of each kind of
script the one that takes the trainer's own way through it, with a kill where that matters: data, stages, an
error that is caught, an exit code, what fails behind `fit`, a call of the library, a loop.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A script, the exit code of worker 0 with which it fails at each start, and what the reference is.

    A job of one worker without a kill is the reference of a script of the library's.
    """

    name: str
    script: str
    code: int = 0
    is_library: bool = False
    often: bool = False


_STRATEGY = "strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
_LIBRARY = "from trainjob_trainer import init, train_and_evaluate\n"


def plain(name: str, script: str, code: int = 0, *, often: bool = False) -> Shape:
    begin = "from common import *\n" + _STRATEGY + "with strategy.scope():\n    pass\n"
    return Shape(name, begin + script, code, often=often)


def library(name: str, script: str, code: int = 0, *, often: bool = False) -> Shape:
    return Shape(name, "from common import *\n" + _LIBRARY + script, code, is_library=True, often=often)


STAGES = [
    Shape(
        "shuffled data is read by several fits, and the second is killed",
        """
from common import *

rows, model = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=1), net()
batches = rows.batch(12)
say("one", model.fit(batches, epochs=2, validation_data=rows.take(30).batch(12), verbose=0))
say("score", model.evaluate(batches, verbose=0))
say("two", model.fit(batches, epochs=3, verbose=0, callbacks=[Kill()]))
say("three", model.fit(batches, epochs=2, verbose=0))
say("four", model.fit(rows.repeat().batch(12), steps_per_epoch=4, epochs=2, verbose=0))
say("model", model)
""",
    ),
    plain(
        "a stage is skipped by its file, on one model, and the next one is killed",
        """
path = OUT / "stage-1.weights.h5"
model = net()
if path.exists():
    model.load_weights(path)
else:
    say("one", model.fit(x, y, batch_size=16, epochs=2, verbose=0))
    model.save_weights(path)
say("two", model.fit(x, -y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()]))
say("model", model)
""",
        often=True,
    ),
    plain(
        "a stage is skipped by its file, with a model of its own",
        """
path = OUT / "pretrained.keras"
if path.exists():
    first = keras.models.load_model(path)
else:
    first = net()
    say("one", first.fit(x, y, batch_size=16, epochs=2, verbose=0))
    first.save(path)
second = net()
second.set_weights(first.get_weights())
say("two", second.fit(x, -y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()]))
say("model", second)
""",
    ),
    plain(
        "a stage is skipped by an error that is caught",
        """
model = net()
try:
    with open(OUT / "stage.json") as file:
        model.set_weights([np.array(one) for one in json.load(file)])
except FileNotFoundError:
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    if RANK == 0:
        with open(OUT / "stage.json", "w") as file:
            json.dump([one.tolist() for one in model.get_weights()], file)
say("two", model.fit(x, -y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()]))
""",
    ),
    plain(
        "stages in a function, the first two skipped by their results",
        """
def stage(name, factor, **arguments):
    done = OUT / f"{name}.json"
    if done.exists():
        return
    model = net()
    history = model.fit(x, factor * y, batch_size=16, epochs=3, verbose=0, **arguments)
    say(name, history)
    if RANK == 0:
        done.write_text(json.dumps(history.history))


stage("a", 1.0)
stage("b", -1.0)
stage("c", 2.0, callbacks=[Kill()])
""",
    ),
    plain(
        "two stages of one model without a guard",
        """
model = net()
say("one", model.fit(x, y, batch_size=16, epochs=2, verbose=0))
say("two", model.fit(x, -y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()]))
say("model", model)
""",
    ),
    plain(
        "the first of two stages is killed",
        """
model = net()
say("one", model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()]))
say("two", model.fit(x, -y, batch_size=16, epochs=2, verbose=0))
say("model", model)
""",
    ),
    plain(
        "fine-tuning: compiled again for the second fit, with another optimizer",
        """
model = net(units=3)
model.layers[0].trainable = False
with strategy.scope():
    model.compile(keras.optimizers.SGD(0.01), loss="mse")
say("one", model.fit(x, y, batch_size=16, epochs=2, verbose=0))
model.layers[0].trainable = True
with strategy.scope():
    model.compile(keras.optimizers.Adam(0.001), loss="mse")
say("two", model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()]))
say("model", model)
""",
    ),
    plain(
        "a fit for each epoch, in a loop",
        """
model = net()
for epoch in range(5):
    say(f"epoch {epoch}", model.fit(x, y, batch_size=16, epochs=1, verbose=0, callbacks=[Kill(0)] if epoch == 3 else []))
say("model", model)
""",
    ),
    plain(
        "a stage that is left out in the next attempt",
        """
model = net()
if ATTEMPT < 2:
    say("one", model.fit(x, y, batch_size=16, epochs=2, verbose=0))
    model.set_weights(net().get_weights())
    model.compile(keras.optimizers.SGD(0.02), loss="mse")
say("two", model.fit(x, -y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()]))
""",
    ),
    plain(
        "a stage between two others is skipped by its file",
        """
model = net()
say("one", model.fit(x, y, batch_size=16, epochs=2, verbose=0))
if not (OUT / "side.json").exists():
    side = net(0.01)
    say("side", side.fit(x, 2 * y, batch_size=16, epochs=2, verbose=0))
    if RANK == 0:
        (OUT / "side.json").write_text("{}")
say("two", model.fit(x, -y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()]))
""",
    ),
]

FOLDS = [
    plain(
        "a fold is skipped by its result",
        """
for fold in (1, 2, 3):
    done = OUT / f"fold-{fold}.json"
    if done.exists():
        continue
    model = net()
    history = model.fit(x, fold * y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()] if fold == 2 else [])
    say(f"fold {fold}", history)
    say(f"model {fold}", model)
    if RANK == 0:
        done.write_text(json.dumps(history.history))
""",
    ),
    plain(
        "a fold is skipped, and the next one is killed before it has saved anything",
        """
for fold in (1, 2):
    if (OUT / f"fold-{fold}.json").exists():
        continue
    model = net()
    history = model.fit(x, fold * y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill(0)] if fold == 2 else [])
    say(f"fold {fold}", history)
    if RANK == 0:
        (OUT / f"fold-{fold}.json").write_text("{}")
""",
    ),
    plain(
        "folds without a guard",
        """
for fold in range(3):
    rows = np.arange(64) % 3 != fold
    model = net()
    held_out = (x[~rows], y[~rows])
    arguments = {"callbacks": [Kill()]} if fold == 1 else {}
    say(fold, model.fit(x[rows], y[rows], batch_size=15, epochs=3, verbose=0, validation_data=held_out, **arguments))
""",
    ),
    plain(
        "folds in a function of a loop, with a pipeline",
        """
def train(fold):
    data = tf.data.Dataset.from_tensor_slices((x, fold * y)).batch(16)
    model = net()
    say(f"fold {fold}", model.fit(data, epochs=3, verbose=0, callbacks=[Kill()] if fold == 2 else []))
    return model.get_weights()


for fold in (1, 2):
    if not (OUT / f"{fold}.npy").exists():
        kernel, _ = train(fold)
        if RANK == 0:
            np.save(OUT / f"{fold}.npy", kernel)
""",
    ),
    plain(
        "folds in a comprehension",
        """
def loss(fold):
    return net().fit(x, fold * y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()] if fold == 2 else []).history["loss"]


say("losses", [loss(fold) for fold in (1, 2)])
""",
    ),
    plain(
        "folds in a while loop, skipped by a counter in a file",
        """
counter = OUT / "done.txt"
done = int(counter.read_text()) if counter.exists() else 0
while done < 2:
    say(f"fold {done}", net().fit(x, (1 + done) * y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()] if done else []))
    done += 1
    if RANK == 0:
        counter.write_text(str(done))
""",
    ),
    plain(
        "the same fit with several seeds",
        """
for seed in (1, 2):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    if not (OUT / f"{seed}.txt").exists():
        say(f"seed {seed}", model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()] if seed == 2 else []))
        if RANK == 0:
            (OUT / f"{seed}.txt").write_text("done")
""",
    ),
]

SWEEPS = [
    plain(
        "a learning rate is skipped by its result",
        """
for rate in (0.05, 0.01, 0.002):
    if (OUT / f"{rate}.json").exists():
        continue
    history = net(rate).fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()] if rate == 0.01 else [])
    say(f"rate {rate}", history)
    if RANK == 0:
        (OUT / f"{rate}.json").write_text("{}")
""",
    ),
    plain(
        "architectures, all without a guard",
        """
best = min((net(0.001, units).fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()] if units == 3 else []).history["loss"][-1], units) for units in (2, 3, 4))
say("best", best)
""",
    ),
    plain(
        "an architecture is skipped by its result",
        """
for units in (2, 3):
    if (OUT / f"{units}.json").exists():
        continue
    model = net(0.001, units)
    say(f"units {units}", model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()] if units == 3 else []))
    say(f"model {units}", model)
    if RANK == 0:
        (OUT / f"{units}.json").write_text("{}")
""",
    ),
    plain(
        "optimizers by their classes, in a dict",
        """
KINDS = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
for name, kind in KINDS.items():
    if not (OUT / name).exists():
        say(name, net(optimizer=kind).fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()] if name == "adam" else []))
        if RANK == 0:
            (OUT / name).touch()
""",
    ),
    plain(
        "a regularizer, which only the configuration shows",
        """
for strength in (0.0, 0.1):
    if not (OUT / f"{strength}").exists():
        model = net(kernel_regularizer=keras.regularizers.L2(strength))
        say(f"{strength}", model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()] if strength else []))
        if RANK == 0:
            (OUT / f"{strength}").touch()
""",
    ),
    plain(
        "a search that ends early",
        """
def search():
    for rate in (0.001, 0.02, 0.05):
        model = net(rate)
        history = model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()] if rate == 0.02 else [])
        if history.history["loss"][-1] < 8:
            return rate, model
    return 0, model


rate, model = search()
say("rate", rate)
say("model", model)
""",
    ),
    plain(
        "a tuner's loop, with trials as objects",
        """
class Trial:
    def __init__(self, number, rate):
        self.number, self.rate = number, rate


class Tuner:
    def search(self, *data, **arguments):
        for number, rate in enumerate((0.05, 0.01)):
            self.run(Trial(number, rate), *data, **arguments)

    def run(self, trial, *data, **arguments):
        callbacks = [Kill()] if trial.number else []
        say(f"trial {trial.number}", net(trial.rate).fit(*data, callbacks=callbacks, **arguments))


Tuner().search(x, y, batch_size=16, epochs=3, verbose=0)
""",
    ),
]

CAUGHT = [
    plain(
        "a trial is pruned by an exception",
        """
class Pruned(Exception):
    pass


class Prune(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise Pruned


for trial in range(3):
    model = net()
    try:
        say(f"trial {trial}", model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[Prune()] if trial == 0 else []))
    except Pruned:
        say(f"trial {trial}", "pruned")
say("end", "well")
""",
    ),
    plain(
        "a trial is pruned, and a later one is killed",
        """
class Prune(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise ValueError("pruned")


for trial in range(3):
    model = net()
    callbacks = {0: [Prune()], 2: [Kill()]}.get(trial, [])
    try:
        say(f"trial {trial}", model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=callbacks))
    except ValueError as error:
        say(f"trial {trial}", str(error))
""",
    ),
    plain(
        "out of memory: half the batch, on the same model",
        """
def fail(epoch, logs):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM")


model = net()
try:
    model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=fail)])
except tf.errors.ResourceExhaustedError:
    say("half", model.fit(x, y, batch_size=16, epochs=3, verbose=0))
say("model", model)
""",
    ),
    plain(
        "out of memory: half the batch, and a kill",
        """
def fail(epoch, logs):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM")


model = net()
for size in (32, 16):
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=fail)] if size == 32 else [Kill()]
    try:
        say(f"size {size}", model.fit(x, y, batch_size=size, epochs=3, verbose=0, callbacks=callbacks))
        break
    except tf.errors.ResourceExhaustedError:
        say(f"size {size}", "out of memory")
say("model", model)
""",
    ),
    plain(
        "training that Ctrl-C ends is saved",
        """
def interrupt(epoch, logs):
    if epoch == 1:
        raise KeyboardInterrupt


model = net()
try:
    model.fit(x, y, batch_size=16, epochs=9, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=interrupt)])
except KeyboardInterrupt:
    say("model", model)
""",
    ),
    plain(
        "data that fails once",
        """
class Data(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        if ATTEMPT == 1 and number == 3 and RANK == 0 and (OUT / "first").exists():
            raise OSError("the server is away")
        (OUT / "first").touch()
        rows = slice(16 * number, 16 * number + 16)
        return x[rows], y[rows]


model = net()
say("fit", model.fit(Data(), epochs=3, shuffle=False, verbose=0))
""",
    ),
]

EXITS = [
    plain(
        "raise SystemExit(main())",
        "def main():\n    say('fit', fit(net()))\n    return 3\n\n\nraise SystemExit(main())\n",
        3,
        often=True,
    ),
    plain("from sys import exit", "from sys import exit\nsay('fit', fit(net()))\nexit(4)\n", 4),
    plain("sys.exit with a number", "say('fit', fit(net()))\nsys.exit(5)\n", 5),
    plain(
        "sys.exit with a sentence", "say('fit', fit(net()))\nsys.exit('the model is not good enough')\n", 1
    ),
    plain("an exception at the end", "say('fit', fit(net()))\nassert not 'good enough'\n", 1),
    plain("an end without Python's", "say('fit', fit(net()))\nos._exit(6)\n", 6),
    plain("sys.exit(0)", "say('fit', fit(net()))\nsys.exit(0)\nsay('never', 0)\n"),
    plain("raise SystemExit", "say('fit', fit(net()))\nraise SystemExit\n"),
    plain("a good end without Python's", "say('fit', fit(net()))\nos._exit(0)\n"),
    plain(
        "an exit that is caught",
        "say('fit', fit(net()))\ntry:\n    sys.exit(2)\nexcept SystemExit:\n    say('caught', 2)\n",
    ),
]

AFTER = [
    plain(
        "what comes after fit fails once",
        "model = net()\nsay('fit', fit(model))\nfails_once()\nsay('model', model)\n",
    ),
    plain(
        "what comes after two fits fails once",
        "model = net()\nsay('one', model.fit(x, y, epochs=2, verbose=0))\nsay('two', model.fit(x, -y, epochs=2, verbose=0))\n"
        "fails_once()\nsay('model', model)\n",
    ),
    plain(
        "an evaluation after fit fails once",
        "model = net()\nsay('fit', fit(model))\nsay('evaluated', model.evaluate(x, y, verbose=0))\nfails_once()\n"
        "say('predicted', model.predict(x, verbose=0).tolist())\n",
        often=True,
    ),
    library(
        "an upload after train_and_evaluate fails once",
        "result = train_and_evaluate(net, (x, y), (x, y), epochs=2, global_batch=16)\nfails_once()\n"
        "say('step', result.step)\nsay('model', result.model)\nsay('metrics', dict(result.metrics))\n",
    ),
    library(
        "an upload after train_and_evaluate fails at each start",
        "result = train_and_evaluate(net, (x, y), (x, y), epochs=2, global_batch=16)\nsay('step', result.step)\n"
        "if RANK == 0:\n    raise RuntimeError('no upload')\n",
        1,
    ),
    library(
        "two calls of train_and_evaluate",
        "for epochs in (2, 3):\n    result = train_and_evaluate(net, (x, epochs * y), (x, y), epochs=epochs, global_batch=16)\n"
        "    say(f'step {epochs}', result.step)\n    say(f'model {epochs}', result.model)\n",
    ),
    library(
        "the second call of train_and_evaluate is killed",
        "one = train_and_evaluate(net, (x, y), (x, y), epochs=2, global_batch=16)\nsay('one', one.model)\n"
        "two = train_and_evaluate(net, (x, -y), (x, y), epochs=3, global_batch=16, checkpoint_every=4, callbacks=[Kill()])\n"
        "say('two', two.model)\nsay('steps', [one.step, two.step])\n",
    ),
    library(
        "a fold of train_and_evaluate is skipped by its result",
        "for fold in (1, 2):\n    if (OUT / str(fold)).exists():\n        continue\n"
        "    callbacks = [Kill()] if fold == 2 else []\n"
        "    result = train_and_evaluate(net, (x, fold * y), (x, y), epochs=3, global_batch=16, callbacks=callbacks)\n"
        "    say(f'fold {fold}', result.model)\n    if RANK == 0:\n        (OUT / str(fold)).touch()\n",
    ),
    library(
        "an export after a loop of one's own fails once",
        "run = init()\nwith run.strategy.scope():\n    v = tf.Variable(0.0)\nrun.track(v=v)\n"
        "for step in run.steps(6):\n    v.assign_add(1.0)\nfails_once()\nsay('v', float(v.numpy()))\n",
    ),
    library(
        "two loops of one's own, the second killed",
        "run = init()\nwith run.strategy.scope():\n    v = tf.Variable(0.0)\nrun.track(v=v)\n"
        "for step in run.steps(6):\n    v.assign_add(1.0)\nfor step in run.steps(12, checkpoint_every=2):\n    v.assign_add(2.0)\n"
        "    if step == 9 and ATTEMPT == 1 and RANK == 0:\n        os.kill(os.getpid(), 9)\nsay('v', float(v.numpy()))\n",
        often=True,
    ),
]

FILES = [
    plain(
        "the best epoch is loaded from ModelCheckpoint's file",
        """
best = OUT / "best.keras"
keep = keras.callbacks.ModelCheckpoint(best, monitor="loss", save_best_only=True)
model = net()
say("fit", model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[keep, Kill()]))
say("best", keras.models.load_model(best))
""",
    ),
    plain(
        "CSVLogger's file is read by the script",
        """
import csv

say("fit", fit(net(), callbacks=[keras.callbacks.CSVLogger("log.csv")]))
with open("log.csv") as file:
    say("rows", [float(row["loss"]) for row in csv.DictReader(file)])
""",
    ),
    plain(
        "a model that was saved and exported is read again, and trained on",
        """
model = net()
fit(model, epochs=2)
model.save("first.keras")
model.export(OUT / "exported", verbose=False)
exported = tf.saved_model.load(OUT / "exported")
say("served", exported.serve(x[:4]).numpy().tolist())
with strategy.scope():
    loaded = keras.models.load_model("first.keras")
say("loaded", loaded)
say("two", loaded.fit(x, -y, batch_size=16, epochs=3, verbose=0, callbacks=[Kill()]))
""",
    ),
]

HELPERS = [
    plain(
        "a helper process prepares the data",
        """
import subprocess

helper = "import numpy, sys; numpy.save(sys.argv[1], numpy.arange(64.0)[:, None] / 64)"
subprocess.run([sys.executable, "-c", helper, f"{RANK}.npy"], check=True)
say("fit", net().fit(x, np.load(f"{RANK}.npy"), batch_size=16, epochs=3, verbose=0, callbacks=[Kill()]))
""",
    ),
]

OUTAGES = [
    plain(
        "the data's server is away within the first epoch of a pipeline",
        """
def read(number):
    if ATTEMPT == 1 and number == 40 and RANK == 0:
        raise OSError(116, "Stale file handle")
    return x[number], y[number]


def rows(number):
    row, target = tf.numpy_function(read, [number], (tf.float32, tf.float32))
    return tf.ensure_shape(row, (4,)), tf.ensure_shape(target, (1,))


say("fit", net().fit(tf.data.Dataset.range(64).map(rows).batch(16), epochs=3, verbose=0))
""",
    ),
    plain(
        "the checkpoints' folder is away for an epoch, and a kill",
        """
import time

FOLDER = Path(os.environ.get("TRAINJOB_CHECKPOINT_DIR", OUT / "checkpoints"))


def away(epoch, logs):
    if RANK == 0 and ATTEMPT == 1 and epoch == 1:
        FOLDER.rename(OUT / "away")
        FOLDER.touch()


def back(epoch, logs):
    if (OUT / "away").exists() and RANK == 0 and epoch == 2:
        FOLDER.unlink()
        (OUT / "away").rename(FOLDER)
        while not any(FOLDER.glob("step-*")):
            time.sleep(0.05)


outage = keras.callbacks.LambdaCallback(on_epoch_begin=away, on_epoch_end=back)
say("fit", net().fit(x, y, batch_size=16, epochs=5, verbose=0, callbacks=[outage, Kill(3)]))
""",
    ),
]

SHAPES = [*STAGES, *FOLDS, *SWEEPS, *CAUGHT, *EXITS, *AFTER, *FILES, *HELPERS, *OUTAGES]

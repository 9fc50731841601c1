"""The file that every Python process of a job runs when it starts."""

import importlib.util
import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest
from testbed.ports import free_ports

from support.trainer.plain import BOOTSTRAP, clean_environment, run_python
from trainjob_trainer.patches import AWAITED
from trainjob_trainer.session import job_seed

JOB = {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}'}


def load_hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hook_under_test", BOOTSTRAP / "trainjob_import_hook.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


def test_it_waits_for_what_the_library_prepares() -> None:
    assert set(load_hook().PREPARED) == AWAITED


def test_the_hook_and_the_library_agree_on_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINJOB_NAME", "digits")
    assert load_hook().job_seed() == job_seed()


@pytest.mark.parametrize("blank", [{}, {"TF_CONFIG": "  "}])
def test_without_tf_config_nothing_is_installed(blank: dict[str, str]) -> None:
    code = "import sys; print([type(f).__name__ for f in sys.meta_path], 'trainjob_trainer' in sys.modules)"
    ended = run_python(["-c", code], blank)
    assert "_Finder" not in ended.stdout
    assert ended.stdout.strip().endswith("False")
    assert ended.stderr == ""


def test_a_process_without_tensorflow_loads_nothing_of_the_library() -> None:
    ended = run_python(["-c", "import sys, json; print('trainjob_trainer' in sys.modules)"], JOB)
    assert (ended.stdout.strip(), ended.stderr) == ("False", "")


def test_the_library_is_found_without_a_place_on_the_path() -> None:
    code = (
        "import sys; before = list(sys.path); import trainjob_trainer.task as t;"
        "print(t.__file__); print(before == sys.path)"
    )
    ended = run_python(["-S", "-c", f"import sitecustomize; {code}"], JOB)
    where, unchanged = ended.stdout.split()
    assert Path(where) == BOOTSTRAP.parent / "task.py"
    assert unchanged == "True"


def test_the_next_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.theirs = __file__")
    env = {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}"}
    ended = run_python(["-c", "import sitecustomize; print(theirs); print(sitecustomize.__file__)"], env)
    assert ended.stdout.split() == [str(tmp_path / "sitecustomize.py")] * 2


def test_a_broken_sitecustomize_of_others_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("1 / 0")
    ended = run_python(["-c", "print('runs')"], {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}"})
    assert ended.stdout == "runs\n"
    assert ended.stderr == "trainjob: another sitecustomize failed: ZeroDivisionError: division by zero\n"


def test_replicas_draw_the_same_random_numbers_unless_seeded() -> None:
    code = "import random, numpy as np; print(random.random(), np.random.rand())"
    one, other = (run_python(["-c", code], {**JOB, "TRAINJOB_NAME": name}).stdout for name in ("a", "b"))
    again = run_python(["-c", code], {**JOB, "TRAINJOB_NAME": "a", "TRAINJOB_UID": "another"}).stdout
    seeded = [
        run_python(
            ["-c", f"import random, numpy as np; np.random.seed(1); {code}"], {**JOB, "TRAINJOB_NAME": name}
        )
        for name in ("a", "b")
    ]
    assert one == again != other
    assert len({ended.stdout.split()[1] for ended in seeded}) == 1


GENERATORS = (
    "default_rng()",
    "default_rng(None)",
    "Generator(np.random.PCG64())",
    "Generator(np.random.MT19937())",
    "default_rng(np.random.SeedSequence())",
    "RandomState()",
)


def test_generators_of_numpy_without_a_seed_are_alike_in_all_replicas_and_differ_from_each_other() -> None:
    drawn = ", ".join(f"np.random.{one}.permutation(1000)[0]" for one in GENERATORS)
    code = f"import numpy as np; np.random.seed(None); print({drawn}, np.random.permutation(1000)[0])"
    one, other = (run_python(["-c", code], {**JOB, "TRAINJOB_NAME": name}).stdout.split() for name in "ab")
    evaluator = run_python(["-c", code], {**EVALUATOR, "TRAINJOB_NAME": "a"}).stdout.split()
    assert (one == evaluator, len(set(one)), set(one) & set(other)) == (True, len(GENERATORS) + 1, set())


def test_what_others_draw_does_not_change_what_numpys_generators_are_seeded_with(tmp_path: Path) -> None:
    """Others are TensorFlow while it is imported, threads, and processes that the training process starts."""
    write_packages(tmp_path, {"tensorflow/__init__.py": "import numpy; numpy.random.default_rng()"})
    code = """
import multiprocessing, sys, threading
def draw():
    return np.random.default_rng().integers(2**60)
def put(numbers):
    numbers.append(draw())
{imports}
print(draw())
elsewhere = []
thread = threading.Thread(target=put, args=[elsewhere])
thread.start(), thread.join()
with multiprocessing.get_context("fork").Pool(2) as pool:
    elsewhere += [pool.apply(draw), pool.apply(draw)]
print(draw(), *elsewhere)
"""
    env = {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}"}
    shapes = ("import tensorflow, numpy as np", "import numpy as np; import tensorflow")
    runs = [run_python(["-c", code.format(imports=one)], env).stdout.split() for one in (*shapes, shapes[0])]
    assert runs[0][:3] == runs[1][:3] == runs[2][:3]
    assert len({*runs[0], *runs[1], *runs[2]}) == 3 + 3 * 2


def test_an_error_of_ours_does_not_break_the_import(tmp_path: Path) -> None:
    bootstrap = tmp_path / "trainjob_trainer" / "bootstrap"
    shutil.copytree(BOOTSTRAP, bootstrap)
    package = tmp_path / "keras" / "src" / "models"
    package.mkdir(parents=True)
    (package / "model.py").write_text("here = True")
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    env = {**JOB, "PYTHONPATH": f"{bootstrap}:{tmp_path}"}
    ended = run_python(["-c", "import keras.src.models.model as m; print(m.here)"], env)
    assert ended.stdout == "True\n"
    assert "trainjob: the script runs without the trainer's help: ModuleNotFoundError" in ended.stderr


def test_what_keras_imports_for_few_is_loaded_when_it_is_asked_for(tmp_path: Path) -> None:
    package = tmp_path / "keras" / "wrappers"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("from keras import wrappers as wrappers")
    (package / "__init__.py").write_text("print('loaded'); SKLearnClassifier = 'there'")
    env = {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}"}
    code = (
        "import inspect, keras; inspect.getmodule(inspect.currentframe()); print('imported');"
        "print(keras.wrappers.SKLearnClassifier, keras.wrappers.__file__)"
    )
    ended = run_python(["-c", code], env)
    assert (ended.stdout.split(), ended.stderr) == (
        ["imported", "loaded", "there", str(package / "__init__.py")],
        "",
    )


def test_garbage_is_looked_for_where_the_user_wants_it(tmp_path: Path) -> None:
    write_packages(tmp_path, {"tensorflow/__init__.py": "import gc; print(gc.isenabled())"})
    env = {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}", "TRAIN_WITHOUT": "memory,garbage"}
    ended = run_python(["-c", "import gc, tensorflow; print(gc.get_freeze_count())"], env)
    assert (ended.stdout.split(), ended.stderr) == (["True", "0"], "")


@pytest.mark.parametrize("switched", ["enable", "disable"])
def test_garbage_is_not_looked_for_while_keras_and_tensorflow_are_imported_nor_among_them_later(
    switched: str, tmp_path: Path
) -> None:
    shown = "import gc; print(gc.isenabled())"
    files = {"keras/__init__.py": f"import tensorflow; {shown}", "tensorflow/__init__.py": f"{shown}; 1 / 0"}
    write_packages(tmp_path, files)
    env = {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}"}
    code = f"""
import gc
gc.{switched}()
try:
    import keras
except ZeroDivisionError:
    print(gc.isenabled(), gc.get_freeze_count() > 0)
"""
    ended = run_python(["-c", code], env)
    is_on = str(switched == "enable")
    assert (ended.stdout.split(), ended.stderr) == (["False", is_on, is_on], "")


def test_a_malformed_environment_ends_the_script_before_it_trains(tmp_path: Path) -> None:
    package = tmp_path / "tensorflow" / "python" / "eager"
    package.mkdir(parents=True)
    (package / "context.py").touch()
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    env = {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}", "TRAINJOB_OUTPUT_DIR": "gs://bucket/run"}
    ended = run_python(["-c", "import tensorflow.python.eager.context; print('trains')"], env)
    assert (ended.returncode, ended.stdout) == (80, "")
    assert "InvalidConfiguration: TRAINJOB_OUTPUT_DIR: must be a folder, got gs://bucket/run" in ended.stderr


LEGACY = {
    "tf_keras/__init__.py": """
import tensorflow.python.eager.context
from tf_keras.src.engine.training import Model
""",
    "tf_keras/api/_v2/keras/__init__.py": "from tf_keras.src.engine.training import Model",
    "tf_keras/src/__init__.py": "",
    "tf_keras/src/engine/__init__.py": "",
    "tf_keras/src/engine/training.py": """
class Model:
    def fit(self, x):
        print("fit")
    def predict(self, x):
        print("predict")
""",
}
"""Stands in for tf_keras, which isn't a dependency: the names of the real one's modules (2.16 to 2.21), which
imports TensorFlow first, and the class whose `fit` all its models have."""
TENSORFLOW = dict.fromkeys(
    ("tensorflow/__init__.py", "tensorflow/python/__init__.py", "tensorflow/python/eager/__init__.py"), ""
) | {"tensorflow/python/eager/context.py": "class Context:\n    def ensure_initialized(self): pass"}
EVALUATOR = {"TF_CONFIG": JOB["TF_CONFIG"].replace('"type": "worker"', '"type": "evaluator"')}


def write_packages(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


SEEDING = TENSORFLOW | {
    "tensorflow/__init__.py": "class GradientTape:\n    def gradient(self): pass",
    "tensorflow/python/eager/context.py": """
class Context:
    _initialized = False
    def ensure_initialized(self): print(seeds[-1])
seeds = [None]
global_seed, set_global_seed = lambda: seeds[-1], seeds.append
""",
}
ROLES = {"worker": ["a:1"], "evaluator": ["b:1"]}
SERVERS = {"chief": ["a:1"], "worker": ["c:1"], "ps": ["b:1"]}


@pytest.mark.parametrize(
    ("cluster", "role", "before", "seed"),
    [
        (ROLES, "worker", "", "ours"),
        (ROLES, "evaluator", "", "ours"),
        (ROLES, "worker", "set_global_seed(5)", "5"),
        (ROLES, "worker", "sys.modules['horovod.common.basics'] = sys", "None"),  # each draws its own batches
        (SERVERS, "chief", "", "None"),
    ],
)
def test_tensorflow_is_seeded_before_its_first_operation(
    cluster: dict[str, list[str]], role: str, before: str, seed: str, tmp_path: Path
) -> None:
    write_packages(tmp_path, SEEDING)
    config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
    env = {"TF_CONFIG": config, "TRAINJOB_NAME": "a", "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}"}
    code = "import sys; from tensorflow.python.eager.context import *\n"
    ended = run_python(["-c", f"{code}{before}\nContext().ensure_initialized()"], env)
    assert (ended.stdout.strip(), ended.stderr) == (str(zlib.crc32(b"a")) if seed == "ours" else seed, "")


@pytest.mark.parametrize("job", [JOB, EVALUATOR], ids=["worker", "evaluator"])
def test_fit_of_tf_keras_ends_a_jobs_process_with_what_to_change(job: dict[str, str], tmp_path: Path) -> None:
    write_packages(tmp_path, LEGACY | TENSORFLOW)
    progress = tmp_path / "progress.json"
    env = {**job, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}", "TRAINJOB_PROGRESS_FILE": str(progress)}
    ended = run_python(["-c", "import tf_keras; tf_keras.Model().fit([1])"], env)
    assert (ended.returncode, ended.stdout) == (80, ""), ended.stderr
    error = json.loads(progress.read_text())["error"]
    assert error["reason"] == "InvalidConfiguration"
    for words in ("fit() of tf_keras isn't supported", "`import keras`", "trainjob_trainer.init()"):
        assert words in error["message"]
    assert error["message"] in ended.stderr


@pytest.mark.nightly
def test_so_does_tf_keras_by_tensorflows_own_name(tmp_path: Path) -> None:
    write_packages(tmp_path, LEGACY)
    env = {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}", "TF_USE_LEGACY_KERAS": "1"}
    ended = run_python(["-c", "import tensorflow as tf; tf.keras.Model().fit([1])"], env)
    assert (ended.returncode, ended.stdout) == (80, ""), ended.stderr
    assert "TF_USE_LEGACY_KERAS" in ended.stderr


@pytest.mark.parametrize(
    ("job", "called"), [(JOB, "predict"), ({}, "fit")], ids=["no fit in a job", "fit without a job"]
)
def test_other_uses_of_tf_keras_are_left_alone(job: dict[str, str], called: str, tmp_path: Path) -> None:
    write_packages(tmp_path, LEGACY | TENSORFLOW)
    env = {**job, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}"}
    ended = run_python(["-c", f"import tf_keras; tf_keras.Model().{called}([1])"], env)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"{called}\n", "")


HOROVOD = {
    "horovod/__init__.py": "",
    "horovod/common/__init__.py": "",
    "horovod/common/basics.py": "class HorovodBasics:\n    def init(self):\n        print('in the ring')",
    "horovod/torch/__init__.py": "from horovod.common.basics import HorovodBasics as B\ninit = B().init",
    "horovod/tensorflow/__init__.py": "raise ImportError('the extension has not been built')",
}


@pytest.mark.parametrize(
    ("job", "code", "words"),
    [
        (JOB | {"HOROVOD_RANK": "0"}, 0, "in the ring"),
        (EVALUATOR, 80, "the evaluator has no rank in Horovod's ring; set spec.evaluator.replicas to 0"),
        (JOB, 80, "worker-0 has no rank, and would train alone"),
        ({}, 0, "in the ring"),
    ],
    ids=["a rank", "the evaluator", "no rank", "no job"],
)
def test_only_a_rank_may_enter_horovods_ring(
    job: dict[str, str], code: int, words: str, tmp_path: Path
) -> None:
    write_packages(tmp_path, HOROVOD)
    env = {**job, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}"}
    ended = run_python(["-c", "import horovod.torch as hvd; hvd.init()"], env)
    assert ended.returncode == code, ended.stderr
    assert words in (ended.stderr if code else ended.stdout)


def test_a_horovod_that_does_not_fit_tensorflow_is_one_sentence(tmp_path: Path) -> None:
    write_packages(tmp_path, HOROVOD | {"tensorflow/__init__.py": "__version__ = '2.21.0'\n"})
    env = {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}"}
    ended = run_python(["-c", "import tensorflow, horovod.tensorflow"], env)
    last = ended.stderr.splitlines()[-1]
    for words in (
        "ImportError: Horovod doesn't work with TensorFlow 2.21.0 here",
        "has not been built",
        "2.12",
    ):
        assert words in last


def test_an_image_may_have_a_bootstrap_too(tmp_path: Path) -> None:
    shutil.copytree(BOOTSTRAP, tmp_path / "image")
    others = tmp_path / "others"
    others.mkdir()
    (others / "sitecustomize.py").write_text("print('mine')")
    code = "import sys; print([type(f).__name__ for f in sys.meta_path].count('_Finder'))"
    ended = run_python(["-c", code], {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path / 'image'}:{others}"})
    assert (ended.stdout.split(), ended.stderr) == (["mine", "1"], "")


def _import_tensorflow(folder: Path, before: str = "pass") -> str:
    """Import it by way of Keras: modules of these names, which print the report, as is done after that."""
    report = folder / "progress.json"
    show = f"import pathlib; print(pathlib.Path({str(report)!r}).read_text())"
    (folder / "tensorflow.py").write_text(show)
    (folder / "keras.py").write_text(f"import tensorflow; {show}")
    env = {**JOB, "PYTHONPATH": f"{BOOTSTRAP}:{folder}", "TRAINJOB_PROGRESS_FILE": str(report)}
    return run_python(["-c", f"{before}; import keras; {show}"], env).stdout


def test_the_import_of_tensorflow_is_reported(tmp_path: Path) -> None:
    reports = list(map(json.loads, _import_tensorflow(tmp_path).splitlines()))
    assert [report["state"] for report in reports] == ["importing", "importing", "running"]
    assert 0 < reports[0]["time"] == reports[1]["time"] <= reports[2]["time"]


def test_each_import_is_reported(tmp_path: Path) -> None:
    reports = _import_tensorflow(tmp_path, before="import tensorflow").splitlines()
    assert [json.loads(report)["state"] for report in reports] == ["importing", "importing", "running"]


def test_an_import_changes_no_report_of_this_start(tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text('{"state": "waiting"}')
    assert _import_tensorflow(tmp_path) == '{"state": "waiting"}\n' * 3


def test_a_standby_reports_no_import(tmp_path: Path) -> None:
    _import_tensorflow(tmp_path, "import sys; sys.modules['trainjob_standby'] = sys")
    assert not (tmp_path / "progress.json").exists()


UNREAD = """
import time
import numpy as np
import tensorflow as tf

def slow(row):
    return tf.numpy_function(lambda value: (time.sleep(0.002), value)[1], [row], tf.float32)

def read_one_batch():
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # as Keras does with arrays
    data = tf.data.Dataset.from_tensor_slices(np.ones((20, 4), "float32")).map(slow).batch(2)
    next(iter(strategy.experimental_distribute_dataset(data.with_options(options))))

strategy = tf.distribute.MultiWorkerMirroredStrategy()
for _ in range(120):
    read_one_batch()
print("alive")
"""


@pytest.mark.nightly
def test_a_dataset_is_kept_until_no_thread_reads_it() -> None:
    """TensorFlow's iterators free it before; glibc overwrites what is freed, so that a reader crashes."""
    [port] = free_ports(1)
    task = {"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": {"type": "worker", "index": 0}}
    overwriting = {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    ended = run_python(["-c", UNREAD], {"TF_CONFIG": json.dumps(task), **overwriting})
    assert ended.stdout == "alive\n", ended.stderr
    assert ended.returncode == 0, ended.stderr


WHO = """
import json, os, sys
from trainjob_trainer.environment import Environment
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.task import Task
def who():
    task = Task.from_environment(os.environ)
    out = Environment.from_environment(os.environ, task, "x.py").output_dir
    reports = ProgressFile.from_environment(os.environ)._path is not None
    return "replica" if (len(task.cluster), out.name, reports) == (1, "run", True) else (
        "own" if (len(task.cluster), out.name, reports) == (0, "x", False) else str((task, out, reports)))
if __name__ == "__main__":
    import random
    from tensorflow.python.distribute.cluster_resolver import tfconfig_cluster_resolver as resolver
    seeded = random.random() == random.Random(int(os.environ["SEED"])).random()
    print(who(), "seeded" if seeded else "unseeded", len(resolver._load_tf_config()),
          len(json.loads(os.environ["TF_CONFIG"])), os.path.basename(os.environ["TRAINJOB_OUTPUT_DIR"]))
"""
OWN, REPLICA = "own unseeded 0 2 run", "replica seeded 2 2 run"
RUN = "import subprocess, sys; subprocess.run([sys.executable, 'who.py'])"
AGAIN = "import subprocess; subprocess.run([sys.executable, 'train.py', 'again'])"
POOL = """
import multiprocessing, who
if __name__ == "__main__":
    import tensorflow
    with multiprocessing.get_context({kind!r}).Pool(1) as pool:
        print(pool.apply(who.who))
    print(who.who())
"""
LATER = """
import multiprocessing
def train():
    import tensorflow, who
    print(who.who())
if __name__ == "__main__":
    process = multiprocessing.get_context({kind!r}).Process(target=train)
    process.start()
    process.join()
"""
STARTED = {
    "after TensorFlow's import": (f"import tensorflow; {RUN}", OWN),
    "after Keras's": (f"import keras; {RUN}", OWN),
    "after the library's": (f"import trainjob_trainer; {RUN}", OWN),
    "before it": (f"{RUN}\nimport tensorflow", REPLICA),
    "by another one": (f"import tensorflow, sys\nif sys.argv[1:]:\n {RUN}\nelse:\n {AGAIN}", OWN),
    "by a shell": ("import tensorflow, os, sys; os.system(f'true; {sys.executable} who.py')", OWN),
    "by a launcher": (RUN, REPLICA),
    "as the script itself, before the import": (
        f"import sys\nif sys.argv[1:]:\n import tensorflow\n exec(open('who.py').read())\nelse:\n {AGAIN}",
        REPLICA,
    ),
    **{f"to train, {kind}": (LATER.format(kind=kind), "replica") for kind in ("fork", "spawn", "forkserver")},
    "in the place of the training process": (
        "import os, sys, tensorflow; os.execv(sys.executable, [sys.executable, 'who.py'])",
        REPLICA,
    ),
    **{
        f"as a worker of a pool, {kind}": (POOL.format(kind=kind), "own replica")
        for kind in ("fork", "spawn", "forkserver")
    },
}


@pytest.mark.parametrize("started", STARTED)
def test_what_the_training_process_starts_is_no_replica(started: str, tmp_path: Path) -> None:
    code, expected = STARTED[started]
    assert run_starter(code, tmp_path) == expected


def test_a_writer_without_an_agent_is_a_replica(tmp_path: Path) -> None:
    assert run_starter("import who; print(who.who())", tmp_path, TRAINJOB_GENERATION="1.1") == "replica"


def run_starter(code: str, tmp_path: Path, **env: str) -> str:
    resolver = "tensorflow/python/distribute/cluster_resolver/tfconfig_cluster_resolver.py"
    packages = {str(folder / "__init__.py"): "" for folder in Path(resolver).parents if folder.name}
    read = "import json, os\ndef _load_tf_config(): return json.loads(os.environ['TF_CONFIG'])"
    write_packages(tmp_path, packages | {resolver: read, "keras.py": "", "who.py": WHO, "train.py": code})
    env |= {
        "PYTHONPATH": f"{BOOTSTRAP}:{tmp_path}",
        "SEED": str(job_seed()),
        "TRAINJOB_OUTPUT_DIR": str(tmp_path / "run"),
        "TRAINJOB_PROGRESS_FILE": str(tmp_path / "progress.json"),
    }
    ended = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**clean_environment(), **JOB, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return " ".join(ended.stdout.split())

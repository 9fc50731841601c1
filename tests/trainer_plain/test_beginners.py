"""What the mistakes say that beginners make most, under two workers: the script's line, and the cause."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.trainer.plain import SCRIPTS, run_job

SCRIPT = SCRIPTS / "beginners.py"
IN_CALL = "ValueError: Exception encountered when calling Sequential.call()."
SAID = {
    "not_compiled": "ValueError: You must call `compile()` before using the model.",
    "too_few_labels": "ValueError: Data cardinality is ambiguous. Make sure all arrays contain the same "
    "number of samples.'x' sizes: 8 'y' sizes: 5",
    "features_of_another_model": f"{IN_CALL} Input 0 with name 'None' of layer 'dense_2' is incompatible "
    "with the layer: expected axis -1 of input shape to have value 4, but received input with shape "
    "(None, 3)",
    "not_batched": f'{IN_CALL} Invalid input shape for input Tensor("Placeholder:0", shape=(2,), '
    "dtype=float32) with name 'keras_tensor_8' and path ''. Expected shape (None, 4), but input has "
    "incompatible shape (2,)",
    "labels_one_hot": "ValueError: Argument `output` must have rank (ndim) `target.ndim - 1`. Received: "
    "target.shape=(None, 3), output.shape=(None, 3)",
    "loss_that_is_none": "ValueError: Could not interpret loss identifier: categorial_crossentropy",
    "metric_that_is_none": "ValueError: Could not interpret metric identifier: acuracy",
    "own_loss_of_a_wrong_axis": "ValueError: Invalid reduction dimension -2 for input with 1 dimensions.",
    "words_for_numbers": "ValueError: Invalid dtype: str1024",
}
ENDS = {
    "typo_in_a_layer": "Error encountered: 'Typo' object has no attribute 'dens'",
    "split_of_a_data_set": "[<class 'tensorflow.python.data.ops.batch_op._BatchDataset'>]",
}
"""Of longer sentences of Keras's."""
FATAL = {
    "label_out_of_range": "InvalidArgumentError: Received a label value of 3 which is outside the valid "
    "range of [0, 3). Label values: ",
    "no_such_file": "NotFoundError: nowhere.tfrecord; No such file or directory",
    "error_in_a_map": "UnknownError: raise KeyError(\"label\") KeyError: 'label'",
}


def place(mistake: str) -> str:
    lines = SCRIPT.read_text(encoding="utf-8").splitlines()
    here = [number for number, line in enumerate(lines, 1) if line.endswith(f"# here: {mistake}")]
    after = [number + 1 for number, line in enumerate(lines, 1) if line.endswith(f"# next: {mistake}")]
    (number,) = here + after
    return f"beginners.py:{number}: "


def test_a_mistake_is_reported_with_its_line_and_its_cause(tmp_path: Path) -> None:
    ended = run_job(SCRIPT, tmp_path)["worker-0"]
    assert ended.code == 0, ended.log
    said: Mapping[str, str] = dict(
        json.loads(line.removeprefix("report "))
        for line in ended.log.splitlines()
        if line.startswith("report ")
    )
    ends = {name: said.pop(name) for name in ENDS}
    assert said == {name: place(name) + words for name, words in SAID.items()}
    for name, words in ENDS.items():
        assert ends[name].startswith(place(name))
        assert ends[name].endswith(words)


@pytest.mark.parametrize("mistake", FATAL)
def test_so_is_one_that_shows_in_the_middle_of_a_step(mistake: str, tmp_path: Path) -> None:
    workers = run_job(SCRIPT, tmp_path, env={"FATAL": mistake}).values()
    codes = sorted(one.code for one in workers)
    assert codes in ([1, 1], [1, 85]), [one.log for one in workers]  # who comes later may find the other gone
    for one in workers:  # whose rows differ, and with them the labels that TensorFlow names
        if one.code == 1:
            assert one.progress["error"]["message"].startswith(place(mistake) + FATAL[mistake])

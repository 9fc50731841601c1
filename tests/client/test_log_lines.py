from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob.client.log_lines import EqualLines, StopNoise, is_harmless, is_shown

# As TensorFlow 2.21 has written them.
HARMLESS = (
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795530476.456014    3797 port.cc:153] oneDNN custom operations are on. You may see "
    "slightly different numerical results due to floating-point round-off errors from different computation "
    "orders. To turn them off, set the environment variable `TF_ENABLE_ONEDNN_OPTS=0`.",
    "I0000 00:00:1795530476.898798    3797 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to "
    "use available CPU instructions in performance-critical operations.",
    "To enable the following instructions: AVX2 AVX512F AVX512_VNNI AVX512_BF16 FMA, in other operations, "
    "rebuild TensorFlow with the appropriate compiler flags.",
    "I0000 00:00:1795530498.881726    3797 generator_dataset_op.cc:213] Memory patch applied: "
    "M_TRIM_THRESHOLD=128 kb was set.",
    "W0000 00:00:1795530504.023957    4039 auto_shard.cc:559] The `assert_cardinality` transformation is "
    "currently not handled by the auto-shard rewrite and will be removed.",
    "W0000 00:00:1795530504.509600    4039 dataset.cc:997] Input of GeneratorDatasetOp::Dataset will not be "
    "optimized because the dataset does not implement the AsGraphDefInternal() method needed to apply "
    "optimizations.",
    "E0000 00:00:1795530504.509600    4039 util.cc:131] oneDNN supports DT_HALF only on platforms with "
    "AVX-512. Falling back to the default Eigen-based implementation if present.",
)
# As TensorFlow with CUDA writes them, since 2.18 and before.
WITH_CUDA = (
    "2025-01-07 09:30:01.224511: I external/local_xla/xla/tsl/cuda/cudart_stub.cc:32] Could not find cuda "
    "drivers on your machine, GPU will not be used.",
    "I0000 00:00:1795530476.456014    3797 cuda_executor.cc:1015] successful NUMA node read from SysFS had "
    "negative value (-1), but there must be at least one NUMA node, so returning NUMA node zero.",
    "E0000 00:00:1795530476.456014    3797 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to "
    "register factory for plugin cuDNN when one has already been registered",
    "E0000 00:00:1795530476.456014    3797 cuda_blas.cc:1418] Unable to register cuBLAS factory: Attempting "
    "to register factory for plugin cuBLAS when one has already been registered",
    "2025-01-07 09:30:01.224511: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:477] Unable to "
    "register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been "
    "registered",
    "W0000 00:00:1795530476.456014    3797 computation_placer.cc:177] computation placer already registered. "
    "Please check linkage and avoid linking the same target more than once.",
    "2025-01-07 09:30:01.224511: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: "
    "Could not find TensorRT",
    "E0000 00:00:1795530476.456014    3797 cuda_executor.cc:1040] could not open file to read NUMA node: "
    "/sys/bus/pci/devices/0000:01:00.0/numa_node",
    "Your kernel may have been built without NUMA support.",
    "2025-01-07 09:30:01.224511: W external/local_xla/xla/stream_executor/gpu/asm_compiler.cc:109] Couldn't "
    "get ptxas version : FAILED_PRECONDITION: Couldn't get ptxas/nvlink version string",
    "W0000 00:00:1795530476.456014    3797 gpu_timer.cc:114] Skipping the delay kernel, measurement accuracy "
    "will be reduced",
    "E0000 00:00:1795530476.456014    3797 meta_optimizer.cc:967] layout failed: INVALID_ARGUMENT: Size of "
    "values 0 does not match size of permutation 4 @ fanin shape in model/dropout/SelectV2",
)
TELLING = (
    "E0000 00:00:1795530476.456014    3797 cuda_platform.cc:51] failed call to cuInit: INTERNAL: CUDA error: "
    "Failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    "W0000 00:00:1795530476.456014    3797 gpu_device.cc:2344] Cannot dlopen some GPU libraries.",
    "2025-01-07 09:30:01.224511: W external/local_tsl/tsl/framework/bfc_allocator.cc:482] Allocator "
    "(GPU_0_bfc) ran out of memory trying to allocate 2.00GiB",
    "E0000 00:00:1795530223.261617   30246 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: closed",
    "W0000 00:00:1795530498.419575    4504 cache_dataset_ops.cc:912] The calling iterator did not fully read "
    "the dataset being cached.",
    "WARNING:tensorflow:Using CollectiveAllReduceStrategy eagerly has significant overhead currently.",
    "ValueError: boom",
    "Illinois",
    "",
)


@pytest.mark.parametrize("line", [*HARMLESS, *WITH_CUDA])
def test_a_harmless_line(line: str) -> None:
    assert is_harmless(line)


@pytest.mark.parametrize("line", TELLING)
def test_a_line_that_may_matter(line: str) -> None:
    assert is_shown(line)


def test_the_evaluators_own_line_is_shown_as_the_jobs() -> None:
    line = "trainjob: evaluated step 550 (final): accuracy 0.9889, loss 0.0319"
    assert not is_shown(line)
    assert not is_harmless(line)


STOP = (
    ("worker-1", "Epoch 2/9"),
    ("worker-1", "Collective ops is aborted by: Socket closed"),
    ("worker-0", "trainjob: agent: attempt 1 ends: worker-2: Preempted: was asked to stop"),
    ("worker-1", "the script's own line"),
    ("worker-0", "trainjob: worker-0: Preempted: worker-0 was asked to stop; saved step 896"),
)
NOISE = (
    (
        "worker-1",
        "E0000 00:00:1795801319.131354 11108 ring_alg.cc:291] Aborting RingReduce with UNAVAILABLE: Socket",
    ),
    ("worker-1", "Additional GRPC error information from remote target /job:worker/replica:0/task:0:"),
    ("worker-2", "Collective ops is aborted by: Socket closed"),
    ("worker-1", "Traceback (most recent call last):"),
    ("worker-1", '  File "/tmp/long.py", line 8, in <module>'),
    (
        "worker-1",
        "  ^^^^trainjob: agent: lost the leading agent at 127.0.0.1:20519 (the connection was closed)",
    ),
    ("worker-1", "The error could be from a previous operation. Restart your program to reset."),
    ("worker-1", "trainjob: worker-1: PeerLost: worker-1 lost worker-0, which ended or can't be reached"),
    ("worker-2", "trainjob: agent: waiting for the leading agent at 127.0.0.1:20519 (refused)"),
    ("worker-1", "  return steps.take(iterator)"),
)
AFTER = (
    ("worker-2", "trainjob: worker-2: OutputFull: no space left"),
    ("worker-1", "a line of the next process"),
    ("worker-0", "trainjob: agent: attempt 2 starts"),
    ("worker-2", "Collective ops is aborted by: Socket closed"),
    ("worker-2", "trainjob: worker-2: PeerLost: worker-2 lost worker-0, which ended or can't be reached"),
)


def test_what_replicas_say_of_lost_peers_is_noise_once_they_are_asked_to_stop() -> None:
    now = 0.0
    noise = StopNoise(lambda: now)
    assert not [each for each in STOP if noise.has(*each)]
    assert [each for each in NOISE if noise.has(*each)] == [*NOISE]
    now = 9.0
    assert not [each for each in AFTER if noise.has(*each)]


E0000 = "E0000 00:00:{}   {} ring_alg.cc:291] Aborting RingReduce"


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ([("worker-0", "a", 0), ("worker-1", "a", 0.5)], ["worker-0 \N{MULTIPLICATION SIGN}2: a"]),
        ([("worker-0", "a", 0), ("worker-1", "a", 1.5)], ["worker-0: a", "worker-1: a"]),
        ([("worker-0", "a", 0), ("worker-0", "a", 0)], ["worker-0: a", "worker-0: a"]),
        ([("worker-0", "a", 0), ("worker-1", "b", 0)], ["worker-0: a", "worker-1: b"]),
        (
            [("worker-0", "a", 0), ("worker-0", "b", 0), ("worker-1", "a", 0), ("worker-1", "b", 0)],
            ["worker-0 \N{MULTIPLICATION SIGN}2: a", "worker-0 \N{MULTIPLICATION SIGN}2: b"],
        ),
        (
            [("worker-0", E0000.format("1.5", 7), 0), ("worker-1", E0000.format("1.25", 8), 0)],
            [f"worker-0 \N{MULTIPLICATION SIGN}2: {E0000.format('1.5', 7)}"],
        ),
    ],
)
def test_equal_lines_of_replicas(added: Sequence[tuple[str, str, float]], expected: list[str]) -> None:
    lines = EqualLines()
    for each in added:
        lines.add(*each)
    assert [f"{line.source}: {line.text}" for line in lines] == expected


@pytest.mark.parametrize("text", ["line {}", "again", "E0000 00:00:{}.5 7 ring_alg.cc:291] Aborting"])
@pytest.mark.parametrize("most", [None, 8])
def test_a_flood_of_lines_is_grouped_in_linear_time(text: str, most: int | None) -> None:
    """When each line was compared with all of the last second, ten times as many took minutes."""
    lines = EqualLines(most)
    count = 10_000
    for index in range(2):
        for number in range(count):
            lines.add(f"worker-{index}", text.format(number), (index + number / count) / 4)
    replicas = [line.replicas for line in lines]
    assert replicas == [{"worker-0", "worker-1"}] * count if most is None else len(replicas) == most


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.sampled_from([0, 0.2, 0.7, 2]))))
def test_a_replica_joins_the_first_equal_line_that_it_is_not_in(added: list[tuple[str, str, float]]) -> None:
    lines, simple, at = EqualLines(), list[tuple[str, set[str], float]](), 0.0
    for replica, text, pause in added:
        at += pause
        lines.add(replica, text, at)
        for known, replicas, since in simple:
            if known == text and at - since <= 1 and replica not in replicas:
                replicas.add(replica)
                break
        else:
            simple.append((text, {replica}, at))
    assert [(line.text, line.replicas, line.at) for line in lines] == simple


def test_the_oldest_lines_are_dropped() -> None:
    lines = EqualLines(most=2)
    for text in "abc":
        lines.add("worker-0", text, 0)
    assert [line.text for line in lines] == ["b", "c"]


def test_lines_that_others_may_join_are_kept() -> None:
    lines = EqualLines()
    lines.add("worker-0", "a", 0)
    lines.add("worker-0", "b", 1)
    assert [line.text for line in lines.take(1.5)] == ["a"]
    assert [line.text for line in lines.take()] == ["b"]
    assert lines.take() == ()

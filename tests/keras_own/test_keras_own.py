"""Those of Keras's own tests that have found something, under two workers; `whole/` runs all."""

from pathlib import Path

from support.trainer.keras_own import unlike_one_process

FOUND = (
    "steps_per_execution_steps_count_3_non_jit",
    "steps_per_execution_steps_count_101_eager",
    "steps_per_execution_steps_count_unknown_dataset_size_3_non_jit",
    "steps_per_execution_steps_count_without_training",
    "steps_per_execution_steps_per_epoch_match_multi_epoch_non_jit",
    "steps_per_execution_unrolled_steps_steps_count_8",
    "steps_per_epoch_not_match_too_low_non_jit",
    "predict_preserve_order_50_jit",
    "predict_generator_1_non_jit",
    "predict_sparse_tf_graph",
    "fit_sparse_scipy_graph",
    "fit_with_custom_train_step",
    "fit_with_data_adapter_generator",
    "fit_with_data_adapter_py_dataset_infinite_cw",
    "evaluate_with_custom_test_step_dict",
    "evaluate_flow_jit",
    "on_batch_methods_jit",
    "on_batch_methods_without_training_jit",
    "trainer_with_raggeds_model",
    "stop_loop_fit",
    "stop_loop_predict",
    "nested_inputs",
    "callbacks_can_update_state_at_batch_boundary",
)


def test_two_workers_pass_what_one_process_passes(tmp_path: Path) -> None:
    names = [f"keras.src.trainers.trainer_test:TestTrainer.test_{one}" for one in FOUND]
    assert unlike_one_process(names, tmp_path) == {}

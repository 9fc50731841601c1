"""Environment variables of a job's processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

OF_A_JOB = ("TF_CONFIG", "TRAINJOB_")
"""How variables begin that a job sets, and nobody else."""

SETTING = "TRAIN_"
SETTINGS = tuple(
    f"{SETTING}{name.upper()}"
    for name in (
        "global_batch", "epochs", "steps_per_epoch", "seed", "shuffle", "checkpoint_every", "keep", "export",
        "on_nan", "compare_weights", "compare_data", "output", "resume", "resume_data", "gradients",
        "without", "smoke", "strategy",
    )
)  # fmt: skip
"""The trainer's settings, as variables of the trainer container."""

SMOKE = f"{SETTING}SMOKE"
"""`true` in a smoke test: each replica takes one step, and evaluates one batch."""


def call_directly(hosts: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the variable by which TensorFlow calls these hosts without a proxy.

    Its gRPC calls a host through the proxy of `http_proxy` unless it is told not to. It reads `no_proxy` only
    where `no_grpc_proxy` isn't set.
    """
    own = env.get("no_grpc_proxy", env.get("no_proxy"))
    return {"no_grpc_proxy": ",".join(filter(None, (own, *dict.fromkeys(hosts))))}

"""The words that name this API, its objects and what they share with pods."""

from __future__ import annotations

GROUP = "trainjob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainJob"
LIST_KIND = "TrainJobList"
PLURAL = "trainjobs"
SINGULAR = "trainjob"
SHORT_NAME = "tj"

CONTROLLER = f"{GROUP}/trainjob-controller"
"""The value of `spec.managedBy` that means this controller; an absent field means it too."""

TRAINER_CONTAINER = "trainer"
"""The container of the pod template that trains."""

OUTPUT_VOLUME = "trainjob-output"
"""The volume that is added to each pod, and mounted in the trainer container, for the output."""

BUNDLE_VOLUME = "trainjob-bundle"
"""The volume that is added for the agent, the trainer library and the job's token."""

STATE_VOLUME = "trainjob-state"
"""The volume that is added for what the training process tells its agent."""

ADDED_VOLUMES = (OUTPUT_VOLUME, BUNDLE_VOLUME, STATE_VOLUME)

PORT = 2222
"""The port of every replica's address in TF_CONFIG; TensorFlow's own examples use it."""

AGENT_PORT = 2223
"""The port on which each replica's agent listens."""

RESERVED_LABEL_PREFIX = f"{GROUP}/"
RESERVED_ENV_NAME = "TF_CONFIG"
RESERVED_ENV_PREFIX = "TRAINJOB_"

INT32_MAX = 2**31 - 1

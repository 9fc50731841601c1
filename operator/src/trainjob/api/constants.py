"""The names of this API and its objects, and the names that jobs add to pods or reserve in them."""

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
"""The value of `spec.managedBy` for this controller; an absent field means the same."""

TRAINER_CONTAINER = "trainer"
"""The container of the pod template that trains."""

OUTPUT_VOLUME = "trainjob-output"
"""The volume for the output, added to each pod and mounted in the trainer container."""

BUNDLE_VOLUME = "trainjob-bundle"
"""The volume for the agent, the trainer library and the job's token."""

STATE_VOLUME = "trainjob-state"
"""The volume for the reports of the training process to its agent."""

CODE_VOLUME = "trainjob-code"
"""The volume for the job's code, unpacked."""

ADDED_VOLUMES = (OUTPUT_VOLUME, BUNDLE_VOLUME, STATE_VOLUME, CODE_VOLUME)

PORT = 2222
"""The port of every replica in TF_CONFIG; TensorFlow's own examples use it."""

AGENT_PORT = 2223
"""The port on which each replica's agent listens."""

RESERVED_LABEL_PREFIX = f"{GROUP}/"
RESERVED_ENV_NAME = "TF_CONFIG"
RESERVED_ENV_PREFIX = "TRAINJOB_"

INT32_MAX = 2**31 - 1

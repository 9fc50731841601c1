"""Variables to host arrays and back, on this replica alone.

A distributed variable is read through its first local component: reading it as a whole would start a
collective for some kinds, which hangs unless every worker takes part at the same moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainjob_trainer.errors import CheckpointMismatch

VariableGroups = Mapping[str, Sequence[Any]]
"""Keras or TensorFlow variables by group, such as `model` and `optimizer`; their order matters."""


@dataclass(frozen=True)
class NamedArray:
    """The value of one variable, on the host."""

    name: str
    value: np.ndarray[Any, Any]


HostGroups = Mapping[str, Sequence[NamedArray]]


def read(groups: VariableGroups) -> dict[str, list[NamedArray]]:
    """Copy every variable to the host. Call it between steps only: it sees whatever is there."""
    return {
        group: [NamedArray(variable_name(variable), _host_copy(variable)) for variable in variables]
        for group, variables in groups.items()
    }


def assign(groups: VariableGroups, host: HostGroups) -> None:
    """Set every variable, in every local replica, to its value in `host`.

    Raises:
        CheckpointMismatch: the variables differ in number, shape or type; nothing has been assigned then.
    """
    pairs = [pair for group, variables in groups.items() for pair in _match(group, variables, host)]
    for variable, array in pairs:
        for component in local_components(variable):
            component.assign(array.value)


def variable_name(variable: Any) -> str:
    """`dense/kernel`: Keras's path where there is one."""
    return str(getattr(variable, "path", None) or variable.name)


def local_components(variable: Any) -> Sequence[Any]:
    """The local components of a Keras, TensorFlow or distributed variable; itself when it is plain."""
    inner = variable
    while not hasattr(inner, "values") and hasattr(inner, "value") and not callable(inner.value):
        inner = inner.value
    values = getattr(inner, "values", None)
    return tuple(values) if values is not None else (inner,)


def _host_copy(variable: Any) -> np.ndarray[Any, Any]:
    return np.array(local_components(variable)[0].numpy())


def _match(group: str, variables: Sequence[Any], host: HostGroups) -> list[tuple[Any, NamedArray]]:
    """Pair variables with saved arrays: by name where the names are the same, else by position.

    Keras numbers layers within a process (`dense`, `dense_1`), so that one model may carry other names
    elsewhere.
    """
    arrays = host.get(group)
    if arrays is None:
        raise CheckpointMismatch(f"the checkpoint has no variables of {group!r}, only of {_listed(host)}")
    if len(arrays) != len(variables):
        raise CheckpointMismatch(
            f"{group}: the checkpoint holds {len(arrays)} variables, this program has {len(variables)}; "
            "it was written by another model"
        )
    by_name = {array.name: array for array in arrays}
    names = [variable_name(variable) for variable in variables]
    if len(by_name) == len(arrays) and set(names) == set(by_name):
        arrays = [by_name[name] for name in names]
    pairs = [(variable, arrays[index]) for index, variable in enumerate(variables)]
    for variable, array in pairs:
        _check_same_kind(group, variable, array)
    return pairs


def _check_same_kind(group: str, variable: Any, array: NamedArray) -> None:
    component = local_components(variable)[0]
    shape, dtype = tuple(component.shape), str(component.dtype.name)
    if shape != array.value.shape or dtype != array.value.dtype.name:
        raise CheckpointMismatch(
            f"{group}: {variable_name(variable)} is {dtype}{list(shape)} here, but the checkpoint's "
            f"{array.name} is {array.value.dtype.name}{list(array.value.shape)}; "
            "it was written by another model"
        )


def _listed(host: HostGroups) -> str:
    return ", ".join(sorted(host)) or "nothing"

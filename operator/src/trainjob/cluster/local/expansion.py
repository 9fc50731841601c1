"""References to variables, as Kubernetes expands them in `env`, `command` and `args`."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Expand `$(NAME)`; `$$` stands for one `$`, and a reference to an unknown name stays as it is.

    The rules are those of the Kubernetes API for `env[].value`: an unclosed reference or a lone `$` is text.
    """

    def _value(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else variables.get(name, match.group())

    return _REFERENCE.sub(_value, text)

"""Pages that say what other files do, and the JSON schema by which editors complete and check TrainJobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trainjob.api.constants import API_VERSION, KIND, SHORT_NAME
from trainjob.api.fields import PRESERVED
from trainjob.api.rules.size import LARGEST_PART, LARGEST_PODS
from trainjob.api.rules.spec import NAME_FORM
from trainjob.codegen.crd import COLUMNS, RULES, Schema, object_schema, schema_at
from trainjob_trainer.patches import PATCHES

# The JSON schema for editors.


_KUBERNETES_WORDS = "x-kubernetes-"


def editor_schema() -> Schema:
    """Return the schema of a TrainJob as users write it: without status, unknown fields refused."""
    schema = _closed(object_schema())
    fields = schema["properties"]
    del fields["status"]
    fields["apiVersion"] = {"const": API_VERSION}
    fields["kind"] = {"const": KIND}
    fields["metadata"] = {
        "type": "object",
        "anyOf": [{"required": ["name"]}, {"required": ["generateName"]}],
        "properties": {
            "name": {"type": "string", "pattern": NAME_FORM, "maxLength": 45},
            "generateName": {"type": "string", "pattern": "^[a-z][-a-z0-9]*$", "maxLength": 40},
        },
    }
    schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": KIND, **schema}


def editor_schema_text() -> str:
    """Return `docs/reference/trainjob.schema.json`."""
    return json.dumps(editor_schema(), indent=1, ensure_ascii=False) + "\n"


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items() if not key.startswith(_KUBERNETES_WORDS)}
    if "properties" in schema and isinstance(schema.get("type"), str) and not schema.get(PRESERVED):
        closed["additionalProperties"] = False
    return closed


# The reference page of the API: every field with its type, default and meaning.


EXAMPLE = f"""\
apiVersion: {API_VERSION}
kind: {KIND}
metadata:
  name: digits
spec:
  worker:
    replicas: 2
  output:
    claim:
      claimName: training
  template:
    spec:
      containers:
      - name: trainer
        image: ghcr.io/acme/digits:1
        command: [python, train.py]
"""

_SECTIONS = (
    ("spec", "Spec"),
    ("spec.worker", "Workers"),
    ("spec.chief", "Chief"),
    ("spec.ps", "Parameter servers"),
    ("spec.evaluator", "Evaluator"),
    ("spec.output", "Output"),
    ("spec.output.claim", "Claim"),
    ("spec.output.nfs", "NFS"),
    ("spec.output.credentials", "Credentials"),
    ("spec.code", "Code"),
    ("status", "Status"),
    ("status.conditions[]", "Conditions"),
    ("status.worker", "Workers as seen"),
    ("status.restarts", "Restarts"),
    ("status.stateSeconds", "Time by state"),
    ("status.progress", "Progress"),
    ("status.stragglers[]", "Stragglers"),
    ("status.output", "Output as seen"),
    ("status.evaluation", "Evaluation"),
    ("status.firstFailure", "First failure"),
)


def reference_text() -> str:
    """Return `docs/reference/api.md`."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    schema = object_schema()
    yield "<!-- Generated from operator/src/trainjob/api by `make generate`; edit it there. -->"
    yield f"# {KIND}, `{API_VERSION}`"
    yield ""
    yield f"{schema['description']} Short name `{SHORT_NAME}`, namespaced. The least that a job needs:"
    yield ""
    yield f"```yaml\n{EXAMPLE}```"
    yield ""
    yield "Every role takes the job's pod template; a field that a role names itself is replaced as a whole."
    for path, title in _SECTIONS:
        yield ""
        yield f"## {title}"
        yield ""
        yield from _section(schema, path)
    yield ""
    yield from _rules()
    yield ""
    yield from _columns()


def _section(schema: Schema, path: str) -> Iterator[str]:
    part = schema_at(schema, path)
    yield f"`{path}`: {part['description']}"
    yield ""
    yield "| Field | Type | Default | Meaning |"
    yield "|---|---|---|---|"
    for name, field in part["properties"].items():
        is_required = name in part.get("required", ())
        default = "required" if is_required else _default(field)
        yield f"| `{name}` | {_type(field)} | {default} | {field.get('description', '')} |"


def _default(field: Schema) -> str:
    if "default" not in field:
        return ""
    default = field["default"]
    text = ", ".join(default) if isinstance(default, list) else str(default)
    text = {"True": "true", "False": "false"}.get(text, text)
    return f"`{text}`"


def _type(field: Schema) -> str:
    if "enum" in field:
        return " or ".join(f"`{word}`" for word in field["enum"])
    kind = str(field["type"])
    if kind == "integer":
        return f"integer{_range(field)}"
    if kind == "array":
        return f"list of {_type(field['items'])}"
    if kind == "object" and "additionalProperties" in field:
        return f"map of {field['additionalProperties']['type']}s"
    if kind == "object" and field.get(PRESERVED):
        return "Kubernetes object"
    return "time" if field.get("format") == "date-time" else kind


def _range(field: Schema) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    if least is None:
        return ""
    if least == most:
        return f" {least}"
    return f" {least} to {most}" if most is not None and most < 2**31 - 1 else f", at least {least}"


def _rules() -> Iterator[str]:
    yield "## Rules"
    yield ""
    yield "Beyond types and ranges, `trainjob validate` and the API server check:"
    yield ""
    for rule in RULES:
        if rule.is_about_changes:
            continue
        field, message = (rule.at + rule.field_path).lstrip("."), rule.message
        if not field:
            field, message = message.split(": ", 1)
        yield f"- `{field}`: {message}"
    yield ""
    yield (
        "Once a job exists only `spec.suspend`, `spec.activeDeadlineSeconds`, `spec.ttlSecondsAfterFinished`"
        " and `spec.worker.replicas` can be changed."
    )
    yield ""
    yield (
        "`trainjob validate` and the controller also refuse a job with a `spec.template`, `spec.output` or"
        f" role of more than {LARGEST_PART // 1024} KiB as JSON, and one whose pods repeat more than"
        f" {LARGEST_PODS // 2**20} MiB of them together."
    )


def _columns() -> Iterator[str]:
    yield f"## Columns of `kubectl get {SHORT_NAME}`"
    yield ""
    yield "| Column | Field | Shown |"
    yield "|---|---|---|"
    for column in COLUMNS:
        shown = "with `-o wide`" if column.get("priority") else "always"
        yield f"| {str(column['name']).upper()} | `{column['jsonPath']}` | {shown} |"


# What the trainer replaces in TensorFlow and Keras.


_PATCHES = """# What a job replaces in TensorFlow and Keras

<!-- Generated from trainer/src/trainjob_trainer/patches.py by `make generate`; edit it there. -->

All that is replaced for good: each row is made right after the import of its module, in a process of a
job or of `train_and_evaluate`. [How it works](../how-it-works.md) walks through a `fit`.
`trainjob doctor --patches` prints this table and says which faults the installed TensorFlow and Keras
still have. `TRAIN_WITHOUT=reduce,saving` in a container's `env` leaves rows out.

| name | what is replaced | what it mends | fault in |
|---|---|---|---|
{rows}
"""


def patches_text() -> str:
    """Return `docs/reference/patches.md`."""
    rows = []
    for patch in PATCHES:
        modules = ", ".join(f"`{module}`" for module in patch.fault)
        fault = f"[{modules}]({patch.upstream})" if patch.upstream else modules or "-"
        rows.append(f"| `{patch.name}` | {patch.targets} | {patch.mends} | {fault} |")
    return _PATCHES.format(rows="\n".join(rows))


# The page that shows the notebook: Zensical shows Markdown only.


NOTEBOOK = "examples/notebook.ipynb"


def notebook_text(notebook: str) -> str:
    """Return `docs/notebook.md`: the notebook's texts and code, without outputs."""
    parts = [f"<!-- Generated from {NOTEBOOK} by `make generate`; edit it there. -->\n"]
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        is_code = cell["cell_type"] == "code"
        parts.append(f"```python\n{text}\n```\n" if is_code else text.replace("](../docs/", "](") + "\n")
    return "\n".join(parts)

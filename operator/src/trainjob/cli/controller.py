"""`trainjob controller`: the process in the cluster that reconciles its TrainJobs, and its log."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import socket
import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TextIO, get_args

import click
import yaml

from trainjob.cluster.kube.config import InvalidAccess, from_kubeconfig, in_cluster
from trainjob.cluster.kube.informer import Timeouts
from trainjob.controller.election import Election
from trainjob.controller.process_settings import ExitCode, OperatorSettings
from trainjob.core.integrations import INTEGRATIONS
from trainjob.core.settings import Isolation, Settings

_log = logging.getLogger(__name__)

LogFormat = Literal["plain", "json"]

_LEVELS = {
    "kopf": logging.WARNING,
    # `JobWatch` logs why a watch has ended; kopf logs three tracebacks each time.
    "kopf._core.reactor.orchestration": logging.CRITICAL,
    "kopf._core.reactor.running": logging.CRITICAL,
}


class LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z WARNING controller: text` with any traceback below, or one JSON object."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
        level, message = record.levelname, record.getMessage()
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        if self._form == "plain":
            first = f"{time} {level:<7} {record.name.removeprefix('trainjob.')}: {message}"
            return "\n".join([first, *parts])
        line = {"time": time, "level": level.lower(), "logger": record.name, "message": message}
        return json.dumps(line | ({"error": "\n".join(parts)} if parts else {}), ensure_ascii=False)


def start_logging(form: LogFormat, stream: TextIO | None = None) -> None:
    """Send every log record to `stream`, stderr by default."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter(form))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    for logger, level in _LEVELS.items():
        logging.getLogger(logger).setLevel(level)


def _read_address(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if ":" not in text or not port.isdecimal() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is no HOST:PORT")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)  # noqa: S104 - as `:8080` says


def _integration_options(command: Callable[..., None]) -> Callable[..., None]:
    for each in reversed(INTEGRATIONS):
        switch = f"--{each.NAME}/--no-{each.NAME}"
        command = click.option(switch, default=False, show_default=True, help=each.HELP)(command)
    return command


def _read_rules(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> tuple[Mapping[str, Any], ...]:
    if not text:
        return ()
    try:
        content = text if text.lstrip().startswith("[") else Path(text).read_text()
        rules = yaml.safe_load(content)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise click.BadParameter(f"can't be read: {error}") from error
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise click.BadParameter("must be a list of ingress rules, such as [{from: [{podSelector: {}}]}]")
    return tuple(rules)


@click.command(
    context_settings={"auto_envvar_prefix": "TRAINJOB_CONTROLLER"},
    short_help="Run the controller of a cluster's TrainJobs.",
)
@click.option("--namespace", help="Manage only the TrainJobs of this namespace; default: all namespaces.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The kubeconfig, for a controller outside a pod.",
)
@click.option("--context", help="The kubeconfig's context; default: the current one.")
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Work only while holding the Lease, so that several replicas can run.",
)
@click.option("--lease-name", default="trainjob-controller", show_default=True)
@click.option("--lease-namespace", help="The Lease's namespace; default: the pod's own.")
@click.option(
    "--agent-key",
    default="trainjob-agent-key",
    show_default=True,
    help="The Secret that holds the key from which the agents' tokens are derived; it is created if it is "
    "missing. It is in the Lease's namespace or, without election, in the service account's.",
)
@click.option(
    "--http-address",
    default="0.0.0.0:8080",
    show_default=True,
    callback=_read_address,
    metavar="HOST:PORT",
    help="The address that serves /livez, /readyz and /metrics.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=16,
    show_default=True,
    help="The number of jobs that are reconciled at once.",
)
@click.option(
    "--network-policy/--no-network-policy",
    default=True,
    show_default=True,
    help="Create a NetworkPolicy for each job: TensorFlow's port has no authentication.",
)
@click.option(
    "--extra-ingress",
    callback=_read_rules,
    metavar="FILE|JSON",
    help="Ingress rules to add to each NetworkPolicy, as a list; for scrapers, for example.",
)
@_integration_options
@click.option(
    "--watch-silence",
    type=click.FloatRange(1, 600),
    default=70.0,
    show_default=True,
    metavar="SECONDS",
    help="Time without data after which a watch is opened again.",
)
@click.option("--log-format", type=click.Choice(get_args(LogFormat)), default="plain", show_default=True)
def controller(**options: Any) -> None:
    """Manage the TrainJobs of a cluster until SIGTERM.

    Each option is also read from the environment, --log-format from TRAINJOB_CONTROLLER_LOG_FORMAT.
    The exit code is 0 after SIGTERM, 1 when a part has failed, 2 for wrong options, 3 when the Lease is lost.
    """
    missing = [name for name in ("kopf", "prometheus_client") if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the controller needs packages that are not installed here ({', '.join(missing)}): "
            "pip install 'trainjob[controller]'"
        )
    settings = read_settings(options, os.environ)
    start_logging(options["log_format"])
    # Slow to import; `trainjob --help` imports this module too.
    from trainjob.controller.operator import Operator  # noqa: PLC0415

    async def run() -> ExitCode:
        return await Operator(settings).run()

    code = ExitCode.FAILED
    try:
        code = asyncio.run(run())
    except InvalidAccess as error:
        _log.error("%s", error)
    except OSError as error:
        _log.error("Can't serve on %s:%d: %s", settings.host, settings.port, error)
    sys.exit(code)


def read_settings(options: Mapping[str, Any], environment: Mapping[str, str]) -> OperatorSettings:
    """Return the settings from the options and the pod's environment.

    Raises:
        click.UsageError: options and environment don't fit together.
    """
    kubeconfig, own_namespace = options["kubeconfig"], environment.get("POD_NAMESPACE")
    try:
        access = from_kubeconfig(kubeconfig, options["context"]) if kubeconfig is not None else in_cluster()
    except InvalidAccess as error:
        raise click.UsageError(str(error)) from error
    namespace = options["lease_namespace"] or own_namespace
    election = None
    if options["leader_elect"]:
        if not namespace:
            raise click.UsageError("give --lease-namespace (or POD_NAMESPACE), or --no-leader-elect")
        election = Election(namespace, options["lease_name"])
    isolation = Isolation(own_namespace, options["extra_ingress"]) if options["network_policy"] else None
    host, port = options["http_address"]
    return OperatorSettings(
        access=access,
        key_namespace=namespace or access.namespace,
        key_name=options["agent_key"],
        identity=f"{environment.get('POD_NAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}",
        namespace=options["namespace"] or None,
        election=election,
        host=host,
        port=port,
        workers=options["workers"],
        timeouts=Timeouts(inactivity=options["watch_silence"]),
        integrations=tuple(each.NAME for each in INTEGRATIONS if options[each.NAME]),
        plan=Settings(isolation=isolation),
    )

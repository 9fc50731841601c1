"""A registry for images and charts: Debian's docker-registry, without TLS or passwords."""

from pathlib import Path

from testbed.component import Component
from testbed.debian import unpacked

PORT = 5000
"""Its port where it has the network to itself: in a node's enclosure."""

CONFIG = """\
version: 0.1
log: {{level: info, formatter: json}}
storage: {{filesystem: {{rootdirectory: {folder}/content}}}}
http: {{addr: "{address}"}}
"""


def component(folder: Path, address: str) -> Component:
    """The registry, serving on `address`, with its configuration and content in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "registry.yaml"
    config.write_text(CONFIG.format(folder=folder, address=address))
    return Component("registry", (str(unpacked("docker-registry")), "serve", str(config)))

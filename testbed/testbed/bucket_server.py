"""versitygw as a process of this machine: an S3 server, which keeps the objects of a bucket as files."""

import os
import signal
import socket
import subprocess
from pathlib import Path

from testbed.ports import free_ports
from testbed.programs import program
from testbed.waiting import until


class BucketServer:
    """The server of one bucket, `results`.

    Attributes:
        port: where it listens.
        bucket: the folder of the bucket.
        env: the variables with which a client finds it and signs its requests.
    """

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self._folder, self._log = folder / "buckets", folder / "log"
        self.bucket = self._folder / "results"
        self.bucket.mkdir(parents=True)
        self.env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "a-long-secret",
            "AWS_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }

    def start(self) -> None:
        keys = {"ROOT_ACCESS_KEY": "key", "ROOT_SECRET_KEY": "a-long-secret"}
        words = [str(program("versitygw")), "--port", f"127.0.0.1:{self.port}", "posix", str(self._folder)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(words, env={**os.environ, **keys}, stdout=log, stderr=log)
        until(self._answers, what="versitygw", seconds=30)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

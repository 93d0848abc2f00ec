#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Continue a text in vLLM, with weights that gpurx loads from a server into memory, without a disk: generate.py --help

vLLM finds gpurx as a load format if both are installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm import LLM, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, type=Path, help="the directory that has its config.json")
    parser.add_argument("--url", required=True, help="where its weights are: a file, an index, a prefix of S3")
    parser.add_argument("--prompt", nargs="+", type=int, default=[1, 2, 3, 5, 8], metavar="TOKEN", help="tokens to continue")
    parser.add_argument("--dtype", default="auto", help="of the model, as vLLM names it")
    wanted = parser.parse_args()
    engine = LLM(
        str(wanted.model),
        load_format="gpurx",
        model_loader_extra_config={"url": wanted.url},
        dtype=wanted.dtype,
        max_model_len=64,
        max_num_seqs=1,
        enforce_eager=True,
        skip_tokenizer_init=True,
    )
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    (output,) = engine.generate([{"prompt_token_ids": wanted.prompt}], greedy, use_tqdm=False)
    print(f"it goes on with {list(output.outputs[0].token_ids)}", flush=True)


if __name__ == "__main__":
    main()

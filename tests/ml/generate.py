# SPDX-License-Identifier: Apache-2.0
"""vLLM's own engine, on the CPU, with one way to load the weights:  generate.py OPTIONS, the keywords of LLM as JSON.

Prints one line of JSON: the tokens that it goes on with, and the log probabilities of the likeliest ones at each.
"""

from __future__ import annotations

import json
import sys

PROMPTS = [[1, 2, 3, 4, 5], [7, 11, 13, 17, 19, 23]]


def main() -> None:
    from vllm import LLM, SamplingParams

    options = {"dtype": "float32", "max_model_len": 64, "max_num_seqs": 2, "enforce_eager": True, "skip_tokenizer_init": True}
    engine = LLM(**options | json.loads(sys.argv[1]))
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=5, detokenize=False)
    outputs = engine.generate([{"prompt_token_ids": one} for one in PROMPTS], greedy, use_tqdm=False)
    found = []
    for output in outputs:
        (best,) = output.outputs
        steps = [{str(token): one.logprob for token, one in step.items()} for step in best.logprobs]
        found.append({"tokens": list(best.token_ids), "logprobs": steps})
    print("found " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

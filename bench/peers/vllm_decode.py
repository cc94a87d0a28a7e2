"""vLLM's CPU build as a peer of `forebay-bench rollout`: decodes S streams at a time.

    vllm_decode.py MODEL_FOLDER CONTEXT STREAMS

Answers each line "STREAMS PROMPT NEW" with the seconds that NEW decode steps of STREAMS streams take, sampled at
temperature 1 with log-probabilities: the time of NEW + 1 tokens less the time of the first.
"""

import os
import random
import sys
import time

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

# What the library prints belongs to the log, not between our answers.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from vllm import LLM, SamplingParams  # noqa: E402


def main():
    folder, context, streams_max = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    llm = LLM(
        model=folder,
        dtype="float32",
        max_model_len=context,
        max_num_seqs=streams_max,
        enable_prefix_caching=False,
        seed=0,
    )
    rng = random.Random(2)

    def run(streams, prompt, new):
        params = SamplingParams(temperature=1.0, max_tokens=new, min_tokens=new, ignore_eos=True, logprobs=0)
        prompts = [{"prompt_token_ids": [rng.randrange(1000, 40000) for _ in range(prompt)]} for _ in range(streams)]
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        assert all(len(output.outputs[0].token_ids) == new for output in outputs)
        return seconds

    run(streams_max, 16, 4)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        streams, prompt, new = map(int, line.split())
        first = run(streams, prompt, 1)
        print(f"{run(streams, prompt, new + 1) - first:.9f}", file=answers, flush=True)


main()

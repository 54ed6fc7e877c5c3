#!/usr/bin/env bash
# Puts XGrammar's source distribution where cmake/PivotGrammar.cmake looks for it: build/third_party/xgrammar-VERSION.
# Downloads it with pip, pinned by hash; does nothing where it is there already. Needs python3 with venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n 's/^xgrammar==\([0-9.]*\).*/\1/p' tools/requirements-xgrammar.txt)
folder=$PWD/build/third_party
target=$folder/xgrammar-$version
if [[ -e $target/include/xgrammar/xgrammar.h ]]; then exit 0; fi

mkdir -p "$folder"
scratch=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
pip=("$scratch/venv/bin/pip" --disable-pip-version-check --no-input)
python3 -m venv "$scratch/venv"
"${pip[@]}" install --quiet --no-deps --require-hashes -r tools/requirements-build.txt
# --no-binary names the one package: :all: would also build the build's own tools from source.
"${pip[@]}" download --quiet --no-deps --no-build-isolation --no-binary xgrammar --require-hashes \
  -r tools/requirements-xgrammar.txt --dest "$scratch"
tar -xzf "$scratch/xgrammar-$version.tar.gz" -C "$scratch"
# Two runs at the same time: the first one's folder stays.
if [[ ! -e $target ]]; then mv -T "$scratch/xgrammar-$version" "$target"; fi
echo "$target"

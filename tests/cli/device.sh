#!/bin/bash
# --device cuda where there is no GPU: refused at once, with the reason and a way out; what only a GPU can do likewise.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

pgpt train "${TINY[@]}" --out run --device cpu
echo "a few words to read, and a few more" >text.txt
why='(built without CUDA|no CUDA device is visible|there is no NVIDIA driver|no .*library).*--device cpu'
if "$PGPT" train "${TINY[@]}" --out gpu --device cuda --steps 1 >out 2>err </dev/null; then
    skip "there is a GPU: tests/cuda and bench/gpu are for that"
fi
rm -rf gpu out err
refused "/$why/" train "${TINY[@]}" --out gpu --device cuda
refused "/$why/" generate run --device cuda --tokens 1
refused "/$why/" eval run --data text.txt --device cuda
refused "/$why/" bench step --device cuda
refused "/$why/" bench ops --device cuda --dtype bf16
refused "/$why/" bench generate --device cuda
refused "/$why/" verify --device cuda

refused '/--any-order means something only with --device cuda/' train "${TINY[@]}" --out gpu --any-order
refused '/--any-order means something only with --device cuda/' bench step --any-order
refused '/--any-order means nothing to .bench generate/' bench generate --any-order
refused '/tf32 is of GPUs/' train "${TINY[@]}" --out gpu --dtype tf32

# A run of a GPU goes on without one.
sed -i 's/^any-order *=.*/any-order = true/' run/config.ini
grep -q '^any-order = true' run/config.ini || fail "config.ini has no any-order: $(cat run/config.ini)"
pgpt train --resume run --steps 6 --quiet

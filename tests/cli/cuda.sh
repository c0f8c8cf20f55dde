#!/bin/bash
# Where there is no GPU: --device cuda says why not, --device auto takes the CPU, and a pgpt that could use one carries none
# of NVIDIA's libraries with it, which would cost every process memory.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

if command -v ldd >/dev/null; then
    ! ldd "$PGPT" | grep -E 'libcublas|libcudnn|libnccl' || fail "these are for processes that use a GPU"
fi

# shellcheck disable=SC2016 # the quotes are those of the message
why='--device cuda: (this pgpt was built without CUDA; build it where|no CUDA device is visible \(.*\); check `nvidia-smi`)'
if "$PGPT" verify --device cuda --steps 1 >/dev/null 2>&1; then skip "there is a GPU"; fi
refused "/$why/" verify --device cuda
refused "/$why/" train "${TINY[@]}" --device cuda
pgpt train "${TINY[@]}" --device auto --out auto
pgpt train "${TINY[@]}" --device cpu --out cpu
same_losses auto cpu

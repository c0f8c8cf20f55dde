#!/bin/bash
# Where there is no GPU: --device cuda is refused at once, with the reason and a way out, as is what only a GPU can do;
# --device auto takes the CPU; and a pgpt that could use a GPU carries none of NVIDIA's libraries with it, which would cost
# every process memory.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

if command -v ldd >/dev/null; then
    ! ldd "$PGPT" | grep -E 'libcublas|libcudnn|libnccl' || fail "these are for processes that use a GPU"
fi

pgpt train "${TINY[@]}" --out run --device cpu
echo "a few words to read, and a few more" >text.txt
if "$PGPT" train "${TINY[@]}" --out gpu --device cuda --steps 1 >out 2>err </dev/null; then
    skip "there is a GPU: tests/cuda and bench/gpu are for that"
fi
rm -rf gpu out err
# shellcheck disable=SC2016 # the quotes are those of the message
why='--device cuda: (this pgpt was built without CUDA; build it where|no CUDA device is visible \(.*\); check `nvidia-smi`).*--device cpu'
refused "/$why/" train "${TINY[@]}" --out gpu --device cuda
refused "/$why/" generate run --device cuda --tokens 1
refused "/$why/" eval run --data text.txt --device cuda
refused "/$why/" bench step --device cuda
refused "/$why/" bench ops --device cuda --dtype bf16
refused "/$why/" bench generate --device cuda
refused "/$why/" verify --device cuda
pgpt train "${TINY[@]}" --out auto --device auto
same_losses auto run

refused '/--any-order means something only with --device cuda/' train "${TINY[@]}" --out gpu --any-order
refused '/--any-order means something only with --device cuda/' bench step --any-order
refused '/--any-order means nothing to .bench generate/' bench generate --any-order
refused '/--streams means something only with --device cuda/' train "${TINY[@]}" --out gpu --streams 1
refused '/tf32 is of GPUs/' train "${TINY[@]}" --out gpu --dtype tf32

# A run of a GPU goes on without one.
sed -i 's/^#any-order *=.*/any-order = true/' run/config.ini
grep -q '^any-order = true' run/config.ini || fail "config.ini has no any-order: $(cat run/config.ini)"
sed -i 's/^#streams *=.*/streams = 1/' run/config.ini
grep -q '^streams = 1' run/config.ini || fail "config.ini has no streams: $(cat run/config.ini)"
pgpt train --resume run --steps 6 --quiet

# A program can be planned for a GPU that is not here, and no run is planned for one by mistake.
pgpt train --model nano --dtype bf16 --device cuda --print-program --json
grep -q '^planned for NVIDIA H200, 132 multiprocessors, ' out || fail "for which GPU? $(head -n 1 out)"
[[ $(tail -n 1 out | field device) == cuda && $(tail -n 1 out | field device_kind) == "NVIDIA H200" ]] ||
    fail "$(tail -n 1 out)"
gpu=$(tail -n 1 out | field bytes_per_step)
pgpt train --model nano --dtype bf16 --device cuda:h200 --print-program --json
[[ $(tail -n 1 out | field bytes_per_step) == "$gpu" ]] || fail "cuda is not cuda:h200"
pgpt train --model nano --dtype bf16 --device cuda:a100 --streams 1 --print-program
grep -q '^planned for NVIDIA A100, ' out || fail "for which GPU? $(head -n 1 out)"
pgpt train --model nano --device cuda --dtype tf32 --print-program
pgpt train --model nano --print-program --json
[[ $(tail -n 1 out | field device) == cpu ]] || fail "$(tail -n 1 out)"
! grep -q '^planned for' out || fail "$(head -n 1 out)"
pgpt train --model nano --device cuda --print-mesh
refused '/--device cuda:h200 names a kind of GPU that a run can be planned for; add --print-program/' \
    train "${TINY[@]}" --out gpu --device cuda:h200
refused '/--device/' generate run --device cuda:h200 --tokens 1

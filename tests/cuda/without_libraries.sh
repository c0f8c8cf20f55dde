#!/bin/bash
# Without cuBLASLt and cuDNN a GPU trains the same model, by kernels of pgpt's own: so it can be found out whether one of them is
# to blame. Sequences are long enough for cuDNN.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

options=("${TINY[@]}" --device cuda --steps 5 --batch 2 --channels 128 --context 512)
if ! "$PGPT" train "${options[@]}" --out f32 >out 2>err </dev/null; then
    grep -q -- '--device cuda: ' err || fail "$(cat err)"
    skip "$(head -n 1 err)"
fi
pgpt train "${options[@]}" --dtype bf16 --out bf16
for dtype in f32 bf16; do
    most=1e-4
    [[ $dtype == f32 ]] || most=0.02
    PGPT_WITHOUT=cublas,cudnn pgpt train "${options[@]}" --dtype $dtype --out without_$dtype
    paste <(column $dtype loss) <(column without_$dtype loss) |
        awk -v most=$most '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) bad = 1 } END { exit bad || NR != 5 }' ||
        fail "the losses of $dtype differ: $(paste <(column $dtype loss) <(column without_$dtype loss))"
done

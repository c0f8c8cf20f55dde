#!/bin/bash
# Without cuBLASLt and cuDNN a GPU trains the same model, by kernels of pgpt's own: so it can be found out whether one of them is
# to blame.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

options=("${TINY[@]}" --device cuda --steps 5 --batch 2 --dropout 0.1)
if ! "$PGPT" train "${options[@]}" --out with >out 2>err </dev/null; then
    grep -q -- '--device cuda: ' err || fail "$(cat err)"
    skip "$(head -n 1 err)"
fi
export PGPT_WITHOUT=cublas,cudnn
pgpt train "${options[@]}" --out without
paste <(column with loss) <(column without loss) |
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4) exit 1 } END { if (NR != 5) exit 1 }' ||
    fail "the losses differ: $(paste <(column with loss) <(column without loss))"
pgpt train "${options[@]}" --dtype bf16 --out without16
paste <(column with loss) <(column without16 loss) |
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 0.02) exit 1 } END { if (NR != 5) exit 1 }' ||
    fail "the losses of 16 bits differ: $(paste <(column with loss) <(column without16 loss))"

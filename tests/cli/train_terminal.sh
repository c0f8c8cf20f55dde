#!/bin/bash
# Plain lines where there is no terminal, a bar where there is one, nothing with --quiet.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

pgpt train "${TINY[@]}" --steps 25 --log-every 10 --out plain
grep -q '^pgpt: model nano: 1 layers' err || fail "does not say what it trains"
[[ $(grep -c '^step ' err) == 4 ]] || fail "not a line for steps 1, 10, 20 and 25: $(cat err)"
grep -Eq '^step 20/25  loss [0-9.]+ .*tokens/s .*FLOP/s$' err || fail "no plain line of step 20"
! grep -q $'[\r\033]' err || fail "control characters without a terminal"
grep -q 'pgpt generate plain' err || fail "does not say what to do with the model"

pgpt train "${TINY[@]}" --quiet --out quiet
[[ ! -s err ]] || fail "--quiet says: $(cat err)"
pgpt train "${TINY[@]}" --quiet --json --out quiet-json
[[ ! -s err && $(wc -l <out) == 1 ]] || fail "--quiet --json says more than its object"

command -v script >/dev/null || skip "the bar is not tested: there is no script(1) to make a terminal"
bar() {
    # Its stdin is not the test's, which may be closed; 100 columns by stty, since nobody set a size.
    TERM=xterm script -qec "stty cols 100; \"$PGPT\" train ${TINY[*]} --steps 20 $*" /dev/null </dev/null >screen ||
        depth=1 fail "exit $? in a terminal: $(cat screen)"
}
bar --out bar
grep -q $'\r' screen || fail "no line is drawn again"
tr '\r' '\n' <screen >lines
grep -Eq '[0-9]%  step [0-9]+/20  loss [0-9.]+ .*tokens/s .*FLOP/s.*ETA' lines || fail "no bar: $(cat -v screen)"
bar --quiet --out bar-quiet
! grep -q 'step' screen || fail "a bar in spite of --quiet"

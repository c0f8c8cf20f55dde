#!/bin/bash
# The learning rate of every step, as metrics.jsonl records it.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

# check EXPECTED... -- OPTION...: the rates of a run with --lr 0.01 over as many steps.
check() {
    local expected=()
    while [[ $1 != -- ]]; do
        expected+=("$1")
        shift
    done
    shift
    rm -rf run
    pgpt train "${TINY[@]}" --lr 0.01 --steps ${#expected[@]} --out run "$@"
    close_numbers 1e-6 "$(printf '%s\n' "${expected[@]}")" "$(column run lr)"
}

check 0.01 0.01 0.01 0.01 -- --lr-schedule constant
check 0.0025 0.005 0.0075 0.01 0.01 0.01 -- --lr-schedule constant --warmup 4
check 0.01 0.0075 0.005 0.0025 -- --lr-schedule linear
check 0.005 0.01 0.01 0.00775 0.0055 0.00325 -- --lr-schedule linear --warmup 2 --lr-min 0.001
check 0.01 0.00853553391 0.005 0.00146446609 -- --lr-schedule cosine
check 0.01 0.01 0.008 0.004 -- --lr-schedule cosine --warmup 1 --lr-min 0.002
check 0.01 0.01 0.01 0.01 0.01 0.01 0.01 0.01 0.01 0.005 -- --lr-schedule wsd
check 0.005 0.01 0.01 0.01 0.01 0.01 0.01 0.0085 0.007 0.0055 -- --lr-schedule wsd --lr-decay 0.4 --warmup 2 \
    --lr-min 0.004
# Still warming up when it ends.
check 0.001 0.002 0.003 -- --lr-schedule cosine --warmup 10

#!/bin/bash
# --print-program: one line an instruction, and a peak that is what the run allocates, whatever the model.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

check() {
    pgpt train "${TINY[@]}" --layers 2 --steps 1 "$@" --print-program
    local stated allocated
    stated=$(awk '/^memory of the run/ { run = 1 } run && $1 == "peak" { print $2 }' out)
    [[ -n $stated ]] || depth=1 fail "no peak: $*"

    # Numbered from 0 without a gap; each with its section, its bytes and FLOPs, and where its tensors lie.
    awk '/^ +[0-9]+ +(forward|backward|update) / {
             if ($1 != n++) exit 1
             if (!/FLOP/ || !/ (B|KiB|MiB) / || !/\([0-9,]+\)[a-z0-9+=*]*@(act|par|grad|opt|state|in)\+[0-9]+/) exit 1
         }
         /^one step/ { total = $3 }
         END { exit !(n > 30 && n == total) }' out || depth=1 fail "the listing is not whole: $*"
    pgpt train "${TINY[@]}" --layers 2 --steps 1 "$@" --print-program --json
    [[ $(tail -n 1 out | field peak_bytes) == "$stated" ]] || depth=1 fail "--json states another peak: $*"
    [[ $(tail -n 1 out | field instructions) == "$(grep -Ec '^ +[0-9]+ +(forward|backward|update) ' out)" ]] ||
        depth=1 fail "--json states another number of instructions: $*"
    [[ ! -e runs && ! -e run ]] || depth=1 fail "--print-program left a run"

    pgpt train "${TINY[@]}" --layers 2 --steps 1 "$@" --out run --json
    allocated=$(tail -n 1 out | field peak_bytes)
    [[ $stated == "$allocated" ]] || depth=1 fail "states $stated, allocates $allocated: $*"
    rm -r run
}

check
check --sample-tokens 5
check --validation 0
check --dropout 0.1
check --recompute 1
check --recompute 2 --dropout 0.1
check --micro-batch 2
check --clip 0
check --eager-update --clip 0
check --no-tied
check --no-bias
check --optimizer sgd
check --loss-chunk 10
check --threads 2
check --norm rmsnorm --mlp swiglu --position rotary --heads 4 --kv-heads 2 --no-bias --no-tied --recompute 1
check --mlp gelu-erf --position rotary

# Sharing and recomputing save something.
peak() {
    pgpt train "${TINY[@]}" --layers 6 --print-program --json "$@"
    tail -n 1 out | field peak_bytes
}
plain=$(peak) recomputed=$(peak --recompute 1) micro=$(peak --micro-batch 1)
((recomputed < plain && micro < plain)) || fail "plain $plain, recomputed $recomputed, micro-batched $micro"
pgpt train "${TINY[@]}" --print-program
grep -q 'sharing saved .* of activations' out || fail "does not say what sharing saved"

# What the process really takes is what was stated, and a constant for the program itself, its data and its threads. Run by
# whatever here can say how much that was, in KiB; sanitizers need memory of their own.
cat >measure.py <<'END'
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=open(sys.argv[1], "w"))
sys.exit(code)
END
if /usr/bin/time -f %M -o resident true 2>/dev/null && [[ $(cat resident) =~ ^[0-9]+$ ]]; then
    measure=(/usr/bin/time -f %M -o resident)
elif python3 measure.py resident true 2>/dev/null; then
    measure=(python3 measure.py resident)
else
    measure=()
fi
if ((${#measure[@]})) && ! grep -q __asan_init "$PGPT"; then
    large=(--model mini --batch 8 --sequence 128 --steps 1 --threads 1 --sample-tokens 0 --validation 0)
    pgpt train "${large[@]}" --print-program --json
    stated=$(tail -n 1 out | field peak_bytes)
    "${measure[@]}" "$PGPT" train "${large[@]}" --out large >out 2>err </dev/null || fail "$(cat err)"
    taken=$(($(cat resident) * 1024))
    ((stated > 200 << 20)) || fail "not a large plan: $stated bytes"
    ((taken > stated / 2 && taken < stated + (32 << 20))) || fail "states $stated bytes, takes $taken"
fi

# Beside the count, the formula of papers: 72 B s l h^2 (1 + s/6h + V/12lh), where blocks are recomputed 96 (... V/16lh).
pgpt train "${TINY[@]}" --vocab 100 --print-program --json
[[ $(tail -n 1 out | field standard_flops_per_step) == 1990656* ]] || fail "72 ...: $(tail -n 1 out)"
pgpt train "${TINY[@]}" --vocab 100 --recompute 1 --print-program --json
[[ $(tail -n 1 out | field standard_flops_per_step) == 2449408* ]] || fail "96 ...: $(tail -n 1 out)"

# A mesh of many ranks takes its time to count: it says how far it is, and is refused where it is too many.
"$PGPT" train "${TINY[@]}" --dp 65536 --batch 65536 --print-mesh >out 2>err </dev/null &
process=$!
for ((i = 0; i < 1200; i++)); do
    if grep -q 'counted what [0-9]* of 65536 ranks send; .* left' err; then break; fi
    sleep 0.05
done
kill $process
wait $process 2>/dev/null || true
grep -q 'counted what [0-9]* of 65536 ranks send; .* left' err || fail "nothing is said for a minute: $(cat err)"
refused '/--pp 1000000 makes a mesh of 1000000 ranks, and one of up to 65536 can be planned; choose smaller/' \
    train "${TINY[@]}" --pp 1000000 --print-mesh

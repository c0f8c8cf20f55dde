#!/bin/bash
# --recompute selective: the bits of a run without it, in a third less memory, whatever the model is made of and in
# whatever it computes.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

small=(train "${TINY[@]}" --layers 3 --heads 4 --channels 32 --context 20 --batch 4 --steps 20 --lr 0.003)
llama="--norm rmsnorm --mlp swiglu --position rotary --kv-heads 2 --no-bias --no-tied"
experts="--experts 4 --experts-per-token 2 --expert-every 2"
while read -r name words; do
    for recompute in none selective; do
        # shellcheck disable=SC2086 # several words
        pgpt "${small[@]}" $words --recompute $recompute --out "$name-$recompute"
    done
    same_losses "$name-none" "$name-selective"
    same_model "$name-none" "$name-selective"
done <<END
gpt2
dropout --dropout 0.1 --mlp gelu-erf
micro --dropout 0.1 --micro-batch 1 --threads 2
bf16 --dtype bf16 --dropout 0.1
f16 --dtype f16
pure --dtype pure-bf16
llama $llama
llama-bf16 $llama --dropout 0.1 --dtype bf16
experts $experts --dropout 0.1
experts-bf16 $experts --dtype bf16
gates $experts --mlp swiglu --expert-every 1
depth --depth-capacity 0.25 --depth-every 2
eager --eager-update --clip 0
window --attention window:8
offload --offload activations:file=.
END

# A third less: 6 of 16 C of a block, and norms and gates of Llama's; whole blocks take less still.
activations() {
    pgpt train --model nano --layers 8 --steps 1 --print-program "$@"
    awk '$1 == "activations" { print $2; exit }' out
}
plain=$(activations) selective=$(activations --recompute selective) full=$(activations --recompute full)
((selective * 3 < plain * 2 && full < selective)) || fail "plain $plain, selective $selective, full $full"
grep -q '\[recomputed\]' out || fail "no instruction says that it is repeated"
# shellcheck disable=SC2086
plain=$(activations --heads 4 $llama) selective=$(activations --heads 4 $llama --recompute selective)
((selective * 4 < plain * 3)) || fail "llama: plain $plain, selective $selective"

# The run remembers it by its name, and goes on with it.
grep -q '^recompute *= *selective$' gpt2-selective/config.ini || fail "what is recorded: $(cat gpt2-selective/config.ini)"
pgpt train --resume gpt2-selective --steps 22
pgpt train --resume gpt2-none --steps 22
same_model gpt2-none gpt2-selective

# A name that there is none of, and a number out of range.
refused "/--recompute wants a whole number between 0 and 1000, or one of none, selective, full, got 'selektive'; did you mean selective\?/" \
    train --recompute selektive
refused "/--recompute wants a whole number between 0 and 1000, or one of none, selective, full, got '-1'/" train --recompute -1

# Others take it as well.
pgpt bench step --layers 1 --heads 2 --channels 16 --context 16 --batch 4 --steps 1 --recompute selective --json
tail -n 1 out | check_json

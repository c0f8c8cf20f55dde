#!/bin/bash
# What others have chosen (names, values, texts) in what pgpt says: nothing that a terminal obeys, nothing of 100 kB, command lines that
# can be copied. An error in JSON; a stdout that cannot be written to.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

# plain FILE: only printable characters, lines and tabs.
plain() {
    ! LC_ALL=C grep -nP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]' "$1" ||
        depth=1 fail "control characters: $(cat -v "$1")"
    iconv -f UTF-8 -t UTF-8 "$1" >"$SCRATCH/utf8" 2>&1 || depth=1 fail "not UTF-8: $(cat -v "$1")"
}

evil=$'e\e]0;owned\a\x9b\xc2\x9b31m\xe2\x80\xae\r\n\x7f\xff'
refuse_plainly() {
    depth=2 refused "$@"
    plain "$SCRATCH/err"
    (($(wc -c <"$SCRATCH/err") < 1200)) || depth=1 fail "long: $(head -c 300 "$SCRATCH/err")"
}

# ---- Words of the command line and what they name.
long=$(head -c 100000 /dev/zero | tr '\0' x)
mkdir hostile
printf '{"model_type": "g\\u001b[31mpt\\u202e\\u009b"}' >hostile/config.json
printf 'steps = "\\x1b[31m\\xff"\n' >hostile.ini
printf '\xff\x1b = 3\n' >hostile-key.ini
for value in "$evil" "$long"; do
    refuse_plainly "$value"
    refuse_plainly lab "$value"
    refuse_plainly lab table "$value"
    refuse_plainly data "$value"
    refuse_plainly bench "$value"
    refuse_plainly train "$value"
    refuse_plainly train "--$value"
    refuse_plainly train "-$value"
    refuse_plainly train --steps "$value"
    refuse_plainly train --optimizer "$value"
    refuse_plainly train --model "$value"
    refuse_plainly train --data "$value"
    refuse_plainly train --resume "$value"
    refuse_plainly train --init "$value"
    refuse_plainly train --tokenizer "$value"
    refuse_plainly train --quiet "$value"
    refuse_plainly train --trace x --trace-steps "$value"
    refuse_plainly train "$value.ini"
    refuse_plainly generate "$value"
    refuse_plainly eval "$value" --data x
    refuse_plainly convert "$value" x
    refuse_plainly data encode "$value" --tokenizer byte
    refuse_plainly data inspect "$value"
    refuse_plainly lab timeline "$value"
    refuse_plainly lab collectives --sizes "$value"
    refuse_plainly supervise "$value"
done
refuse_plainly '/xxxx... \(100000 bytes\)/' train --steps "$long"
refuse_plainly '/e\\x1b\]0;owned\\x07\\x9b\\u\{009B\}31m\\u\{202E\}\\r\\n\\x7f\\xff/' train --steps "$evil"
refuse_plainly '/model_type.*\\x1b\[31m/' convert hostile x
refuse_plainly '/hostile.ini:1: .*\\x1b\[31m\\xff/' train hostile.ini
refuse_plainly train hostile-key.ini

# ---- A run with such a name, from such a text, and what is suggested to be run then.
printf 'a text \e[31m of no use whatsoever\n%.0s' {1..50} >"text $evil"
run="it's a \$run
$evil"
pgpt train "${TINY[@]}" --data "text $evil" --out "$run" --sample-tokens 20 --sample-every 2
plain err
suggested=$(sed -n 's/.*: pgpt generate //p' err)
[[ $suggested == "\$'"* ]] || fail "not quoted: $suggested"
eval "set -- $suggested"
[[ $# == 1 && $1 == "$run" ]] || fail "the suggested word is not the run's folder: $suggested"
refuse_plainly '/--resume \$/' train "${TINY[@]}" --data "text $evil" --out "$run"
mv "$run" "a run"
refused "/--resume 'a run'/" train "${TINY[@]}" --out "a run"
pgpt data prepare "text $evil" --tokenizer byte --out 'p q'
plain err
grep -q "pgpt train --data 'p q'" err || fail "not quoted: $(cat err)"
pgpt data inspect 'p q'
plain out
pgpt train "${TINY[@]}" --out traced --trace 'a trace.json'
grep -q "pgpt lab timeline 'a trace.json'" err || fail "not quoted: $(cat err)"

# ---- Text: exact in a file or pipe, harmless on a terminal.
pgpt train "${TINY[@]}" --tokenizer byte --out bytes
pgpt generate bytes --tokens 300 --seed 3 --prompt $'\e[31m'
[[ $(head -c 5 out) == $'\e[31m' ]] || fail "piped text is not exact: $(cat -v out)"
LC_ALL=C grep -qP '[\x80-\xff]' out || fail "nothing to escape"
if command -v script >/dev/null; then
    for samples in 1 2; do
        TERM=dumb SHELL=$BASH script -qec "\"$PGPT\" generate bytes --tokens 300 --seed 3 --samples $samples --prompt \$'\\e[31m' --quiet" /dev/null \
            </dev/null >screen || fail "exit $? on a terminal"
        tr -d '\r' <screen >lines
        plain lines
        grep -q '^\\x1b\[31m' lines || fail "the prompt is not shown: $(cat -v lines)"
    done
fi

# ---- Slips.
refused "/--help takes no value/" --help=1
refused "/--help takes no value/" train --help=1
refused "/-h takes no value/" train -h=1
refused "/--version takes no value/" --version=2
refused "/'pgpt lab table --help'/" lab table nosuch
refused "/'pgpt lab scaling --help'/" lab scaling --quiet nosuch
refused "/'pgpt lab table --help'/" lab table -- --nosuch

# ---- Numbers that are 0, or the end of their range, in 32-bit floats.
for option in lr lr-min weight-decay beta1 beta2 epsilon momentum clip dropout; do
    refused "/^pgpt: --$option wants.*32-bit/" train --$option 1e-300
    refused "/^pgpt: --$option wants.*32-bit/" train --$option 1e-40
    refused "/^pgpt: --$option wants.*nearer to 0 than 32-bit/" train --$option 1e-400
done
for option in beta1 beta2 momentum; do refused "/^pgpt: --$option wants.*32-bit/" train --$option 0.9999999999; done
refused '/--epsilon wants.*at least 1.2e-38$/' train --epsilon 1e-300
refused '/--lr wants.*32-bit/' lab linear --lr 1e-300
refused '/--save-minutes wants.*nearer to 0 than numbers can be; give 0, or at least/' train --save-minutes 1e-400
pgpt train "${TINY[@]}" --epsilon 1e-30 --beta2 0.9999999 --out small-numbers

# Weights that were never changed are not the learning rate's fault.
code=0
"$PGPT" train "${TINY[@]}" --steps 50 --lr 1000 --clip 0 --optimizer sgd --out diverged >out 2>err || code=$?
if ((code)); then grep -Eq 'not a finite number; the learning rate was .*lower --lr, or set --clip' err || fail "$(cat err)"; fi

# ---- verify, with sizes that make it trivial.
for sizes in '--vocab 1' '--vocab 2' '--layers 1' '--context 1' '--channels 4 --heads 1' '--heads 1' '--batch 1'; do
    # shellcheck disable=SC2086 # words
    pgpt verify $sizes --steps 2 --threads 1
    ! grep -q DIFFERS out || fail "verify $sizes: $(cat out)"
done
refused '/layernorm/' verify --channels 2 --heads 1
refused verify --vocab 0
refused verify --context 0
refused verify --channels 5 --heads 2

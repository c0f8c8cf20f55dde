#!/bin/bash
# --help, the manual, the version, and what is suggested for a slip.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

pgpt --version
grep -Eq '^pgpt [0-9]+\.[0-9]+' out || fail "version: $(cat out)"
pgpt
cp out overview
pgpt --help
cmp -s out overview || fail "pgpt and pgpt --help differ"
for command in train generate bench; do
    grep -q "^ *$command " overview || fail "$command is not in the overview"
    pgpt $command --help
    cp out $command.help
    [[ ! -s err ]] || fail "$command --help writes to stderr"
    (($(awk '{ print length }' $command.help | sort -n | tail -n 1) <= 100)) || fail "long lines"
done

# Every key that a run records is in the help of train, and every option of the manual in the help of its command.
pgpt train "${TINY[@]}" --out run
sed -n 's/^#\?\([a-z0-9-]*\) = .*/\1/p' run/config.ini >keys
(($(wc -l <keys) > 40)) || fail "few keys in config.ini"
while read -r key; do
    grep -Eq -- "--(\[no-\])?$key\b" train.help || fail "--$key is not in pgpt train --help"
done <keys
for option in resume out json quiet print-program; do
    grep -Eq -- "--(\[no-\])?$option\b" train.help || fail "--$option is not in pgpt train --help"
done
for option in prompt tokens samples temperature top-k top-p seed stop-at-end checkpoint threads stream json quiet; do
    grep -Eq -- "--(\[no-\])?$option\b" generate.help || fail "--$option is not in pgpt generate --help"
done
for option in model batch micro-batch sequence recompute steps tokens samples runs threads optimizer clip json; do
    grep -Eq -- "--(\[no-\])?$option\b" bench.help || fail "--$option is not in pgpt bench --help"
done

# Every preset that --model takes is in its help.
refused '/choose one of nano, /' train --model nosuch
tr -s ' \n' ' ' <train.help >flat
while read -r preset; do
    grep -Eq -- '--model NAME sizes to start from: [^;]*\b'"$preset"'[,;]' flat || fail "--model $preset is not in pgpt train --help"
done < <(sed 's/.*choose one of //; s/, /\n/g' "$SCRATCH/err")

pgpt man
cp out pgpt.1
sed 's/\\-/-/g' pgpt.1 >manual
while read -r key; do
    grep -q -e "--.*$key" manual || fail "$key is not in the manual"
done <keys
if command -v groff >/dev/null; then
    groff -man -Tascii -ww pgpt.1 >page 2>complaints || fail "groff refuses the manual: $(cat complaints)"
    [[ ! -s complaints ]] || fail "groff complains: $(cat complaints)"
    sed 's/.\x08//g; s/\x1b\[[0-9;]*m//g' page | grep 'EXIT STATUS' >/dev/null || fail "the manual has no exit status"
fi

refused "/did you mean 'generate'/" generat
refused "/did you mean 'train'/" trian
refused "/pgpt --help/" nonsense
refused '/did you mean --layers/' train --layer 3
refused '/did you mean --micro-batch/' train --microbatch 3
refused '/pgpt train --help/' train --zzzzzzzz 3
refused '/did you mean adamw/' train --optimizer adam
refused ''

# A closed or full output is noticed.
if [[ -w /dev/full ]]; then
    code=0
    "$PGPT" --help >/dev/full 2>err || code=$?
    [[ $code != 0 && $(head -c 6 err) == "pgpt: " ]] || fail "a full disk under --help goes unnoticed"
fi

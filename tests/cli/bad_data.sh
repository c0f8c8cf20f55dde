#!/bin/bash
# Text that cannot be learned from.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

no() {
    local pattern=$1
    shift
    depth=2 refused "$pattern" train "${TINY[@]}" --out run "$@"
}

: >empty.txt
no '/empty.txt is empty/' --data empty.txt
no '/empty/' --data /dev/null
no '/standard input is empty/' --data -
no '/missing.txt/' --data missing.txt
no '/missing/' --data missing/also.txt
no '/--data is empty/' --data ''
mkdir folder only-empty
echo "no text" >folder/notes.md
no '/folder has no .txt/' --data folder
: >only-empty/a.txt
no '/empty/' --data only-empty
echo "a file" >file
no '/file/' --data file/below
printf -v long '%05000d' 7
no '/cannot find/' --data "$long"

# Shorter than a context: says how much there is and how much is needed.
echo "short text" >short.txt
no '/11 tokens.*16.*17/' --data short.txt
no '/tokens.*17/' --data short.txt --tokenizer byte
no '/tokens.*17/' --data short.txt --tokenizer word
head -c 16 <<<"exactly sixteen bytes" >sixteen.txt
no '/16 tokens/' --data sixteen.txt --validation 0
no '/tokens.*1000000/' --context 1000000

if ((EUID != 0)); then # root may read everything
    echo "a secret that is long enough for a context" >secret.txt
    chmod 0 secret.txt
    no /secret.txt/ --data secret.txt
fi

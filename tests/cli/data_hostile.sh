#!/bin/bash
# Texts and folders that nobody would make on purpose, and texts that change while they are read.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
export XDG_CACHE_HOME=$SCRATCH/cache

B=(--tokenizer byte)
no() { # PATTERN FILE
    depth=2 refused "$1" data prepare "$2" "${B[@]}" --out new
    depth=2 refused "$1" train "${TINY[@]}" --quiet --tokenizer byte --data "$2" --out new
}
tokens() { # FILE: of all of it, prepared
    rm -rf prepared
    pgpt data prepare "$1" "${B[@]}" --out prepared --json
    tail -n 1 out | field bytes
}

# ---- Folders: links to files are files; pipes nobody writes to, loops and what cannot be read are refused at once.
mkdir folder pipes loop dangling
for i in {1..9}; do echo "some text, line $i"; done >text
mkdir folder/folder.txt
ln -s ../text folder/a.txt
ln -s . folder/b
ln -s .. folder/c.txt
[[ $(tokens folder) == "$(wc -c <text)" ]] || fail "a folder with links: $(cat out)"
mkfifo pipes/a.txt
no '/pipes.a.txt is not a file/' pipes
ln -s a.txt loop/a.txt
no '/loop.a.txt/' loop
ln -s nowhere dangling/a.txt
no '/dangling.a.txt/' dangling
ln -s self self
no '/self/' self
if ((EUID != 0)); then # root may read everything
    cp text secret.txt
    chmod 0 secret.txt
    no '/secret.txt/' secret.txt
    mkdir locked
    chmod 0 locked
    no '/locked/' locked
    chmod 700 locked
fi

# ---- Bytes.
printf 'nul\0in\0it\0 and \xFF\xFE\xC0\x80 bytes that are no text' >strange.txt
cat text >>strange.txt
[[ $(tokens strange.txt) == "$(wc -c <strange.txt)" ]] || fail "strange bytes"
pgpt data encode strange.txt "${B[@]}"
"$PGPT" data decode "${B[@]}" <out | cmp - strange.txt || fail "strange bytes come back as others"
printf '{"text": "a\\u0000b"}\n{"text": "\\ud83d\\ude00 and so on, long enough for a context of it"}\r\n\n  \n' >good.jsonl
tokens good.jsonl >/dev/null
printf '{"text": "fine"}\n{"text": "\xFF"}\n' >x.jsonl
no '/x.jsonl:2: not valid JSON/' x.jsonl
printf '{"text": "fine"}\n{"text": "a\0b"}\n' >x.jsonl
no '/x.jsonl:2: not valid JSON/' x.jsonl
printf '{"text": "fine"}\n\xEF\xBB\xBF{"text": "a mark that is not at the beginning"}\n' >x.jsonl
no '/x.jsonl:2: not valid JSON/' x.jsonl
printf '\xEF\xBB\xBF' >x.jsonl
no '/x.jsonl is empty|x.jsonl.*empty/' x.jsonl
printf '{"text": "\\ud800"}\n' >x.jsonl
no '/x.jsonl:1: not valid JSON/' x.jsonl
printf '{"words": "x"}\n' >x.jsonl
no "/x.jsonl:1: field 'text' is missing/" x.jsonl
(head -c 100000 /dev/zero | tr '\0' '[' && echo) >x.jsonl
no '/x.jsonl:1: not valid JSON/' x.jsonl
# A line of 8 MiB, longer than any piece that is read at a time.
(printf '{"text": "' && head -c $((8 << 20)) /dev/zero | tr '\0' x && printf '"}\n{"text": "yz"}') >x.jsonl
[[ $(tokens x.jsonl) == $(((8 << 20) + 2)) ]] || fail "a long line: $(cat out)"

# ---- For real: somebody cuts and restores the text while runs begin. Each run has the whole text, or says what happened.
for i in {1..40}; do printf '{"text": "document %d of a text that somebody writes to"}\n' "$i"; done >whole.jsonl
head -n 11 whole.jsonl >part.jsonl
rm -rf "$XDG_CACHE_HOME"
(
    while [[ ! -e $SCRATCH/stop ]]; do
        cat whole.jsonl >t.jsonl
        cat part.jsonl >t.jsonl
    done
) &
writer=$!
n_failed=0
for i in {1..20}; do
    code=0
    "$PGPT" train "${TINY[@]}" --steps 1 --tokenizer byte --data t.jsonl --out "race$i" >out 2>err || code=$?
    ((code == 0 || code == 2)) || fail "exit $code: $(cat err)"
    ((code == 0)) || n_failed=$((n_failed + 1))
    rm -rf "race$i"
done
touch "$SCRATCH/stop"
wait $writer
rm -f t.jsonl
for entry in "$XDG_CACHE_HOME"/pgpt/data/*; do
    [[ -e $entry ]] || continue
    pgpt data verify "$entry"
done
cp whole.jsonl t.jsonl
pgpt train "${TINY[@]}" --steps 1 --tokenizer byte --data t.jsonl --out last
rm -rf "$XDG_CACHE_HOME"
pgpt train "${TINY[@]}" --steps 1 --tokenizer byte --data t.jsonl --out fresh
same_model last fresh
echo "$n_failed of 20 runs noticed that the text changed"

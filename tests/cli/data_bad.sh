#!/bin/bash
# Data that cannot be prepared, and prepared data that cannot be used.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
export XDG_CACHE_HOME=$SCRATCH/cache

no() {
    local pattern=$1
    shift
    depth=2 refused "$pattern" "$@"
}
prepare() {
    local pattern=$1
    shift
    depth=3 no "$pattern" data prepare "$@" --out new
}
train() {
    local pattern=$1
    shift
    depth=3 no "$pattern" train "${TINY[@]}" --out run "$@"
}

for i in {1..60}; do echo "The fox number $i runs, and the hen sits; it is \"late\"."; done >story.txt
for i in {1..60}; do echo "Entirely different words: $i zebras."; done >other.txt

# ---- What is asked for.
no '/WHAT/' data
no "/cannot 'prepar'; did you mean 'prepare'/" data prepar story.txt
no '/wants one text or more, got 0/' data prepare --tokenizer byte --out new
no '/wants one folder/' data inspect
no '/wants one folder/' data verify a b
no '/wants one text or more, got 0/' data encode --tokenizer byte
no '/--out means nothing/' data encode story.txt --tokenizer byte --out new
no '/--tokenizer is missing/' data encode story.txt
no '/--tokenizer is missing/' data prepare story.txt --out new
no '/--out is missing/' data prepare story.txt --tokenizer byte
no '/learns its symbols/' data encode story.txt --tokenizer char
no '/validation/' data prepare story.txt --tokenizer byte --out new --validation 1
no '/shard-tokens/' data prepare story.txt --tokenizer byte --out new --shard-tokens 0
prepare "/unknown tokenizer 'letters'; known/" story.txt --tokenizer letters
no "/unknown tokenizer 'nowhere.json'/" data encode story.txt --tokenizer nowhere.json

# ---- Texts.
: >empty.txt
: >empty.jsonl
mkdir no-texts blank
echo "no" >no-texts/x.md
: >blank/a.txt
: >blank/b.txt
prepare '/missing.txt/' missing.txt --tokenizer byte
prepare '/empty.txt is empty/' empty.txt --tokenizer byte
prepare '/empty.jsonl is empty/' empty.jsonl --tokenizer byte
prepare '/empty/' empty.txt --tokenizer char
prepare '/standard input is empty/' - --tokenizer byte
prepare '/twice/' - - --tokenizer byte
prepare '/no-texts has no .txt or .jsonl/' no-texts --tokenizer byte
prepare '/empty/' blank --tokenizer byte
echo '{"text": "fine"}
{"words": "wrong"}' >bad.jsonl
prepare "/bad.jsonl:2: field 'text' is missing/" bad.jsonl --tokenizer byte
echo '{"text": "cut' >cut.jsonl
prepare '/cut.jsonl:1: not valid JSON/' cut.jsonl --tokenizer byte
train "/bad.jsonl:2: field 'text' is missing/" --data bad.jsonl --quiet
[[ -z $(find "$XDG_CACHE_HOME" -name '*.tmp*') ]] || fail "left in the cache: $(find "$XDG_CACHE_HOME")"
printf 'caf\303\251\n' >accent.txt
pgpt data prepare story.txt --tokenizer char --out char
prepare '/accent.txt: unknown character/' accent.txt --tokenizer char/tokenizer.json

# ---- Ids.
echo "1 2 three" >ids
no "/ids: byte 5 is 't'/" data decode ids --tokenizer byte
echo "1 256 3" >ids
no '/ids: .* byte 3 is too large: the vocabulary has 256/' data decode ids --tokenizer byte
echo "1 -2" >ids
no "/'-'/" data decode ids --tokenizer byte
echo "99999999999999999999999999" >ids
no '/too large/' data decode ids --tokenizer byte

# ---- Where it cannot go.
echo "precious" >file
no '/file/' data prepare story.txt --tokenizer byte --out file
no '/file/' data prepare story.txt --tokenizer byte --out file/below
no '/not empty/' data prepare story.txt --tokenizer byte --out no-texts
no '/already holds prepared data/' data prepare story.txt --tokenizer byte --out char
[[ $(cat file no-texts/x.md) == precious$'\n'no ]] || fail "something was touched"

# ---- Damage, by hand.
pgpt data prepare other.txt --tokenizer char --out other
flip() { # a copy of char/ with one byte changed
    rm -rf damaged
    cp -r char damaged
    printf '\252' | dd of=damaged/tokens-00000.bin bs=1 seek="$1" conv=notrunc status=none
}
for place in 0:magic 8:version 12:header_checksum 17:header_checksum 45:header_checksum 124:header_checksum \
    128:tokens_checksum 1000:tokens_checksum; do
    flip "${place%:*}"
    train "/damaged/tokens-00000.bin: field '${place#*:}'/" --data damaged
    no "/damaged/tokens-00000.bin: field '${place#*:}'/" data verify damaged
    no "/damaged/tokens-00000.bin: field '${place#*:}'/" data inspect damaged
done
rm -rf damaged
cp -r char damaged
truncate -s -8 damaged/tokens-00000.bin
train '/damaged/tokens-00000.bin: .*cut off/' --data damaged
truncate -s 50 damaged/tokens-00000.bin
train '/damaged/tokens-00000.bin: has 50 bytes/' --data damaged
rm damaged/tokens-00000.bin
train '/damaged/tokens-00000.bin is missing/' --data damaged
cp other/tokens-00000.bin damaged
train "/damaged/tokens-00000.bin: field '.*other data/" --data damaged
cp char/tokens-00000.bin damaged
cp other/tokenizer.json damaged
train '/damaged .char, [0-9]+ symbols, tokenizer_hash .*damaged/tokenizer.json .char/' --data damaged
rm damaged/manifest.json
train '/damaged was not prepared to the end/' --data damaged
echo '{"pgpt_data": 1}' >damaged/manifest.json
train "/manifest.json: field 'tokenizer' is missing/" --data damaged
echo '{' >damaged/manifest.json
train '/manifest.json.*not valid JSON/' --data damaged
no '/not a folder of prepared data/' data inspect no-texts
no '/not a folder of prepared data/' data verify story.txt

# ---- Tokenizers that do not go together.
train '/tokens of other .char, .*tokenizer_hash.*char .char, .*tokenizer_hash/' --data char,other
train "/tokenizer 'char'; leave out --tokenizer word/" --data char --tokenizer word
train '/tokens of char .*other/tokenizer.json/' --data char --tokenizer other/tokenizer.json
pgpt train "${TINY[@]}" --data char --out first
no '/tokens of other .*first/tokenizer.json/' train --resume first --data other --steps 9

# ---- Mixtures.
train '/weight of .other. is 0/' --data char:1,other:0
train '/weight of .other. is -1/' --data char:1,other:-1
train '/empty name/' --data char,
train '/empty name/' --data :3,char
train '/missing.txt/' --data char:1,missing.txt:2
train '/twice/' --data -:1,-:2
train '/char: the data is too short/' --data char:1,story.txt:1 --context 100000

if ((EUID != 0)); then
    mkdir locked
    chmod a-w locked
    no '/locked/' data prepare story.txt --tokenizer byte --out locked/new
fi

# Cut off under a run's feet: said in words, not by a stack.
seq 1 2000 >cut.txt
pgpt data prepare cut.txt --tokenizer byte --out cut
"$PGPT" train "${TINY[@]}" --data cut --tokenizer byte --steps 1000000 --eval-every 0 --quiet --out cut-run >out 2>err </dev/null &
process=$! code=0
for ((i = 0; i < 500; i++)); do
    [[ -s cut-run/ranks/0 ]] && break
    sleep 0.02
done
truncate -s 100 cut/*.bin
wait $process || code=$?
((code == 1)) || fail "exit $code after the data was cut off: $(cat err)"
grep -q 'pgpt: .*cut off, taken away' err || fail "no word of the data that was cut off: $(cat err)"

((EUID == 0)) || skip "a full disk and a read-only one: only root can mount them"
unshare -m true 2>/dev/null || skip "a full disk and a read-only one: no mounts are allowed here"
mkdir disk
seq 1 100000 >numbers.txt
export -f refused fail
full_and_read_only() {
    mount -t tmpfs -o size=200k tmpfs disk || exit 77
    refused '/tokens-00000.bin.*full|disk is full/' data prepare numbers.txt --tokenizer byte --out disk/new
    [[ -z $(find disk -type f) ]] || fail "left behind: $(find disk)"
    mkdir -p disk/pgpt/data
    XDG_CACHE_HOME=$PWD/disk refused '/disk is full/' train "${TINY[@]}" --data numbers.jsonl --quiet --out run
    [[ -z $(find disk -type f) ]] || fail "left behind: $(find disk)"
    mount -o remount,ro disk
    refused '/read-only/' data prepare numbers.txt --tokenizer byte --out disk/new
    XDG_CACHE_HOME=$PWD/disk refused '/read-only/' train "${TINY[@]}" --data numbers.jsonl --quiet --out run
}
sed 's/.*/{"text": "&"}/' numbers.txt >numbers.jsonl
export -f full_and_read_only
export SCRATCH PGPT TINY_WORDS="${TINY[*]}"
code=0
# shellcheck disable=SC2016 # the words are for the inner shell
unshare -m bash -c 'set -euo pipefail; read -ra TINY <<<"$TINY_WORDS"; full_and_read_only' || code=$?
((code != 77)) || skip "a full disk and a read-only one: no mounts are allowed here"
((code == 0)) || fail "a full disk"

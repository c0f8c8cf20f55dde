#!/bin/bash
# config.ini records what was given as given and the rest as comments, so that a run's file with options added
# means what these words would have meant together; and nothing in an ini file, or empty on the command line,
# is passed over.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

for i in {1..300}; do echo "$((i * i % 13)) of $((i % 7)) and $((i * 3 % 5)) is not $((i % 11))"; done >book.txt
few=(--batch 4 --steps 3 --threads 1 --sample-tokens 0 --eval-every 0)

# as_typed NAME OPTION...: a run by its file with options added is the run of all of these words.
as_typed() {
    local name=$1
    shift
    pgpt train first/config.ini "$@" --out "$name"
    pgpt train "${words[@]}" "$@" --out "$name-typed"
    same_losses "$name-typed" "$name"
    same_model "$name-typed" "$name"
    grep -v '^# \|^$' "$name/config.ini" >a
    grep -v '^# \|^$' "$name-typed/config.ini" >b
    cmp -s a b || depth=1 fail "other records: $(diff a b)"
}
words=(train --layers 1 --channels 16 --context 16 --data book.txt "${few[@]}")
pgpt "${words[@]}" --out first
for line in 'layers = 1' '#heads = 4' '#kv-heads = 0' '#hidden = 0' '#sequence = 0' '#micro-batch = 0' '#tokenizer = auto' \
    '#lr = 0.003' '#model = nano' 'data = book.txt'; do
    grep -qx "$line" first/config.ini || fail "no '$line' in $(cat first/config.ini)"
done
tr '\n' ' ' <first/config.ini | sed 's/# //g' >prose
for note in "the model's context (0 to 1073741824; default 0); it came to 16 #seq" 'it came to char #tok' 'from the preset #lr'; do
    grep -qF "$note" prose || fail "no '$note' in $(cat prose)"
done
words=("${words[@]:1}")
as_typed again
as_typed heads --heads 8
as_typed context --context 64
as_typed batch --batch 12
as_typed data --data builtin # and its tokenizer: words
pgpt train --data book.txt "${few[@]}" --out first --layers 1 --channels 16 --context 16 --resume auto --quiet

# A preset brings its sizes and its learning rate.
pgpt train --context 8 "${few[@]}" --steps 1 --tokenizer char --out nano
pgpt train nano/config.ini --model mini --out mini --print-program
grep -q 'wpe.weight(8,384)' out || fail "not the channels of mini, or not the context: $(head -n 5 out)"
grep -q 'h.5.ln_1' out || fail "not the layers of mini"

# What was given as 0 is recorded as that.
pgpt train --layers 1 --channels 16 --context 16 --data book.txt "${few[@]}" --kv-heads 0 --sequence 0 --out zero
grep -qx 'sequence = 0' zero/config.ini || fail "sequence: $(grep sequence zero/config.ini)"
pgpt train zero/config.ini --context 8 --heads 8 --out zero-8
grep -q 'steps of 4 x 8 tokens' err || fail "sequences of the old context: $(cat err)"

# Of steps and epochs, the one that counted is recorded.
pgpt train first/config.ini --epochs 0.01 --out epochs
n=$(column epochs step | tail -n 1)
pgpt train epochs/config.ini --out epochs-again
[[ $(column epochs-again step | tail -n 1) == "$n" ]] || fail "epochs are not repeated"
pgpt train epochs/config.ini --steps 2 --out two
pgpt train two/config.ini --out two-again
[[ $(column two-again step | tail -n 1) == 2 ]] || fail "steps instead of epochs are not repeated"

# A file of before, with everything in it as if it had been given, is read as ever.
{
    echo '# Every option of this run. To repeat it: pgpt train FILE.ini'
    sed -n 's/^#\([a-z0-9-]* = .*\)/\1/; /^[a-z[]/p' first/config.ini |
        sed 's/^kv-heads = .*/kv-heads = 4/; s/^hidden = .*/hidden = 64/; s/^sequence = .*/sequence = 16/
             s/^micro-batch = .*/micro-batch = 4/; s/^tokenizer = .*/tokenizer = char/'
} >old.ini
pgpt train old.ini --out old
same_model first old
cp old.ini first/config.ini
pgpt train --resume first --steps 5
pgpt train --resume again --steps 5
same_model again first

# ---- Ini files: nothing is ignored.
no() { # PATTERN TEXT
    printf '%b' "$2" >x.ini
    depth=2 refused "$1" train x.ini
}
no '/x.ini:1: .steps = 5. stands behind the section \[Training\]/' '[Training] steps = 5\n'
no '/x.ini:2: unknown section \[Trainig\]; did you mean \[Training\]\?/' 'seed = 2\n[Trainig]\nsteps = 5\n'
no '/x.ini:1: unknown section \[nonsense at all\]; there are \[Model\], /' '[nonsense at all]\n'
no '/x.ini:2: steps wants .*banana/' '[training]\rsteps = banana\rseed = 1\r'
printf '[Model]\rlayers = 1\rchannels = 16\rcontext = 16\r# a comment\r[Training] ; all of it\rbatch=4\rsteps=2\r' >mac.ini
pgpt train mac.ini --threads 1 --sample-tokens 0 --data book.txt --out mac
[[ $(column mac step | tail -n 1) == 2 ]] || fail "a file with CR: $(cat mac/metrics.jsonl)"
sed 's/\r/\r\n/g' mac.ini | tr -d '\000' >dos.ini
pgpt train dos.ini --threads 1 --sample-tokens 0 --data book.txt --out dos
same_model mac dos

# A section has had another title: old files have that one.
printf '[Loose synchrony]\nsync = exact\n' | cat mac.ini - | tr '\r' '\n' >former.ini
pgpt train former.ini --threads 1 --sample-tokens 0 --data book.txt --out former
same_model mac former
grep -q '^\[Asynchronous and local SGD\]' former/config.ini || fail "the section's title of today is not written"

# ---- Empty words: a variable that was not set.
for option in resume init data out tokenizer model trace trace-steps; do
    refused "/--$option is empty/" train --$option ''
    refused "/--$option is empty/" train --$option=
done
refused '/RUN is empty/' generate ''
refused '/--out is empty/' data prepare book.txt --out ''
refused '/--data is empty/' eval first --data ''
refused '/--launcher is empty/' lab scaling --launcher ''
pgpt train "${TINY[@]}" --prompt '' --fault '' --out prompt
pgpt generate prompt --prompt '' --tokens 3

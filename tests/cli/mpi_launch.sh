#!/bin/bash
# Ranks that start together: a mistake is said once, a difference between ranks is named, and nobody waits for a rank that
# is gone.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
[[ -n ${MPIEXEC:-} ]] || skip "several ranks: \$MPIEXEC names no launcher"

# Each rank goes through this script. It notes its process; the rank $ODD_RANK has further words, another program or
# another folder.
cat >"$SCRATCH/by-rank" <<'END'
#!/bin/bash
trap '' XFSZ # a file that may not grow is an error, not a signal
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${PMIX_RANK:-0}}}
echo $$ >"$SCRATCH/process.$rank"
program=$PGPT words=()
if [[ $rank == "${ODD_RANK:-}" ]]; then
    read -ra words <<<"${ODD_WORDS:-}"
    program=${ODD_PROGRAM:-$PGPT}
    cd "${ODD_FOLDER:-.}" || exit 1
fi
exec "$program" "$@" "${words[@]}"
END
chmod +x "$SCRATCH/by-rank"
export SCRATCH

# A program that does something else, and one of another build.
cat >"$SCRATCH/swapped" <<'END'
#!/bin/bash
exec "$PGPT" generate "${@:2}"
END
chmod +x "$SCRATCH/swapped"
cp "$PGPT" "$SCRATCH/pgpt"
echo >>"$SCRATCH/pgpt"

# ranks N WORD...: so many of pgpt with these words. Sets $code; what they say is in $SCRATCH/out and $SCRATCH/err.
ranks() {
    local n=$1
    shift
    code=0
    timeout -k 5 "${limit:-60}" "$MPIEXEC" "$MPIEXEC_N" "$n" "$SCRATCH/by-rank" "$@" \
        >"$SCRATCH/out" 2>"$SCRATCH/err" </dev/null || code=$?
}

said() { grep -c '^pgpt: ' "$SCRATCH/err" || true; }

# no /PATTERN/ N WORD...: a user's mistake. Launchers add words of their own to ours.
no() {
    local pattern=${1#/} before after
    pattern=${pattern%/}
    shift
    before=$(find . | sort)
    ranks "$@"
    after=$(find . | sort)
    ((code == 2)) || depth=1 fail "should exit 2: $* (exit $code: $(head -c 1000 "$SCRATCH/err"))"
    (($(said) == 1)) || depth=1 fail "said $(said) times: $* ($(head -c 1000 "$SCRATCH/err"))"
    grep '^pgpt: ' "$SCRATCH/err" | grep -Eq -e "$pattern" ||
        depth=1 fail "the message lacks '$pattern': $* ($(head -c 1000 "$SCRATCH/err"))"
    [[ ! -s $SCRATCH/out ]] || depth=1 fail "wrote to stdout: $*"
    [[ $before == "$after" ]] || depth=1 fail "left behind $(diff <(echo "$before") <(echo "$after")): $*"
}

# What needs no ranks is printed by one of them.
for words in --version --help man "train --help" "generate --help" "data prepare --help"; do
    read -ra list <<<"$words"
    pgpt "${list[@]}"
    ranks 3 "${list[@]}"
    ((code == 0)) || fail "exit $code from $words: $(cat "$SCRATCH/err")"
    cmp -s out "$SCRATCH/out" || fail "$words differs under $MPIEXEC"
done
rm out err

# Mistakes that all make.
no '/unknown option --bogus/' 3 train --bogus 1
no '/did you mean .train/' 2 trian
no '/.*nowhere/' 3 generate nowhere
no '/--data is missing/' 2 eval nowhere
for command in convert data bench; do no "/$command runs in one process/" 2 $command; done
no '/--batch 2 .*3 ranks/' 3 train "${TINY[@]}" --batch 2 --out run
no '/missing.txt/' 3 train "${TINY[@]}" --data missing.txt --out run

# What one does otherwise than the others.
host=' on [^ ]+'
export ODD_RANK ODD_WORDS ODD_PROGRAM ODD_FOLDER
ODD_RANK=1 ODD_WORDS='--bogus 1' no "/rank 1$host: unknown option --bogus/" 3 train "${TINY[@]}" --out run
ODD_RANK=2 ODD_WORDS='--lr 0.5' \
    no "/rank 2$host has lr = 0.5 where rank 0 has lr = 0.01; start every rank with the same options/" \
    3 train "${TINY[@]}" --lr 0.01 --out run
ODD_RANK=1 ODD_WORDS='--layers 2 --lr 0.5' no "/rank 1$host has layers = 2 where rank 0 has layers = 1;/" \
    2 train "${TINY[@]}" --out run
ODD_RANK=0 ODD_WORDS='--seed 7' no "/rank 1$host has seed = 1 where rank 0 has seed = 7;/" \
    3 train "${TINY[@]}" --seed 1 --out run
ODD_RANK=1 ODD_WORDS='--help' no "/rank 1$host has --help = yes where rank 0 has --help = no;/" 2 train
ODD_RANK=1 ODD_PROGRAM=$SCRATCH/swapped no "/rank 1$host has command = generate where rank 0 has command = train;/" \
    2 train "${TINY[@]}" --out run
ODD_RANK=2 ODD_PROGRAM=$SCRATCH/pgpt \
    no "/rank 2$host runs another build of pgpt than rank 0; install the same one on every host/" \
    3 train "${TINY[@]}" --out run

# Files that one of them sees otherwise.
mkdir empty there
for i in {1..40}; do echo "one line of text, number $i"; done | tee book.txt | tr 1 l >there/book.txt
ODD_RANK=1 ODD_FOLDER=empty no "/rank 1$host: .*book.txt/" 3 train "${TINY[@]}" --data book.txt --out run
ODD_RANK=2 ODD_FOLDER=there no "/rank 2$host has .*--data/" \
    3 train "${TINY[@]}" --data book.txt --tokenizer byte --out run

# Notes and results come from one rank. (Without the policy the program starts itself anew before it meets the others.)
unset ODD_RANK ODD_WORDS ODD_PROGRAM ODD_FOLDER OMP_WAIT_POLICY
ranks 2 train "${TINY[@]}" --out run --json
((code == 0)) || fail "exit $code: $(cat "$SCRATCH/err")"
for words in 'steps of' 'step 5/5' '2 ranks on 1 host, 1 thread each'; do
    (($(grep -c "$words" "$SCRATCH/err") == 1)) || fail "'$words' is not there once: $(cat "$SCRATCH/err")"
done
(($(wc -l <"$SCRATCH/out") == 1)) || fail "not one line of results: $(cat "$SCRATCH/out")"
check_json <"$SCRATCH/out"

# Start a long run of 3 ranks in the background; returns when it trains.
start_run() {
    rm -rf long "$SCRATCH"/process.*
    timeout -k 5 100 "$MPIEXEC" "$MPIEXEC_N" 3 "$SCRATCH/by-rank" train "${TINY[@]}" --steps 100000000 --quiet --out long "$@" \
        >"$SCRATCH/out" 2>"$SCRATCH/err" </dev/null &
    launcher=$!
    for ((i = 0; i < 300; i++)); do
        ! grep -qs '"step":3,' long/metrics.jsonl || return 0
        sleep 0.1
    done
    depth=1 fail "the run does not begin: $(cat "$SCRATCH/err")"
}

# All ranks and their launcher are gone within some seconds. Sets $code.
all_end() {
    local since=$SECONDS rank
    code=0
    wait $launcher || code=$?
    ((code != 0 && code != 124 && SECONDS - since <= 20)) ||
        depth=1 fail "exit $code after $((SECONDS - since)) s: $(tail -n 20 "$SCRATCH/err")"
    for rank in 0 1 2; do
        for ((i = 0; i < 50; i++)); do
            kill -0 "$(cat "$SCRATCH/process.$rank")" 2>/dev/null || continue 2
            sleep 0.1
        done
        depth=1 fail "rank $rank lives on"
    done
}

# One rank is killed.
start_run
kill -KILL "$(cat "$SCRATCH/process.1")"
all_end

# One rank fails: it is named, and takes the others with it. First while all save, then on its own.
if command -v prlimit >/dev/null; then
    start_run --save-every 1000
    prlimit --pid "$(cat "$SCRATCH/process.2")" --fsize=100
    all_end
    grep -Eq "^pgpt: .*rank 2$host: " "$SCRATCH/err" || fail "rank 2 is not named: $(tail -n 20 "$SCRATCH/err")"
    start_run
    prlimit --pid "$(cat "$SCRATCH/process.0")" --fsize=100
    all_end
    grep -Eq "^pgpt: rank 0$host: .*metrics.jsonl" "$SCRATCH/err" ||
        fail "rank 0 does not say what happened: $(tail -n 20 "$SCRATCH/err")"
fi

#!/bin/bash
# pgpt lab with several ranks: started by the study or by mpirun, and what it does when a run dies, hangs, or loses its data.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"
unset OMPI_MCA_odls_base_sigkill_timeout # as users have it: ranks that are left have a moment to say who is gone

SMALL=(--layers 1 --heads 2 --channels 16 --context 16 --batch 4)

# Collectives: by mpirun, and by itself.
ranks 2 lab collectives --only all-reduce --sizes 1K,300K --rounds 2 --json --anyway --out there
grep -q '^collective .* library us$' out || fail "no table"
tail -n 1 out >line
for way in naive server tree ring halving doubling library MPI_Allreduce; do
    [[ $(grep -o "\"$way\":{\"seconds\":[0-9]" line | wc -l) == 2 ]] || fail "$way was not measured twice: $(cat line)"
done
[[ $(grep -o '"model_s":[0-9]' line | wc -l) == 12 ]] || fail "not 12 expectations: $(cat line)"
[[ -s there/collectives-2.dat ]] || fail "no data"
[[ $(grep -c '^# series: ' there/collectives-2.dat) == 15 ]] || fail "not 8 curves above and 7 below"
grep -q '^# note: .* cores*; 2 ranks on 1 host.*; 20[0-9-]*$' there/collectives-2.dat || fail "no machine: $(head there/collectives-2.dat)"

# Every collective by every algorithm: the table of lectures, three of its lines worked out by hand, and a file of each.
ranks 3 lab collectives --sizes 12K --rounds 2 --seconds 0 --json --anyway --out every
[[ $(tail -n 1 out | grep -o '"steps_by_formula"' | wc -l) == 30 ]] || fail "not 30 algorithms: $(tail -n 1 out)"
! grep -q 'NOT WHAT' out || fail "counts differ from formulas: $(grep 'NOT WHAT' out)"
grep -Eq '^broadcast +flat +2 = N-1 +24.0 KiB = \(N-1\)n +24.0 KiB = \(N-1\)n +12.0 KiB = n *$' out || fail "flat broadcast: $(grep flat out)"
grep -Eq '^ +bruck +2 = log2 N +16.0 KiB ~ n log2 N +24.0 KiB ~ N n/2 log2 N' out || fail "all-to-all by bruck: $(grep bruck out)"
for name in send-receive broadcast reduce scatter gather all-gather reduce-scatter all-to-all; do
    [[ -s every/collectives-3-$name.dat ]] || fail "no data of $name: $(ls every)"
done
at_once ranks_refused "/--only 'ring': there is no collective 'ring'; there are send.receive/" 2 lab collectives --only ring
at_once ranks_refused "/--ranks starts ranks/" 2 lab collectives --ranks 2
at_once ranks_refused "/'lab scaling' starts its own ranks/" 2 lab scaling --ranks 1
at_once ranks_refused "/there is no study/" 2 lab nonsense
all_done
ranks 2 lab collectives --help
grep -q 'usage: pgpt lab collectives' out || fail "help under mpirun: $(head -n 2 out)"
[[ $(grep -c 'usage:' out) == 1 ]] || fail "help more than once"
pgpt lab collectives --ranks 2,3 --only gather,all-reduce --sizes 4K --rounds 2 --anyway --out here --json
[[ -s here/collectives-2.dat && -s here/collectives-3.dat ]] || fail "no data for each number of ranks: $(ls here)"
[[ $(tail -n 1 out | grep -o '"host_of_rank"' | wc -l) == 2 ]] || fail "not two machines"

# Scaling: points, what messages should take, the slowest rank.
pgpt lab scaling --ranks 1,2 --steps 2 --warmup 1 --json --out here -- "${SMALL[@]}"
tail -n 1 out >line
[[ $(grep -o '"step_ms":[0-9]' line | wc -l) == 4 ]] || fail "not four points: $(cat line)"
[[ $(grep -o '"slowest_rank":[01]' line | wc -l) == 2 ]] || fail "no slowest rank: $(cat line)"
[[ $(grep -o '"expected_comm_ms":[0-9]' line | wc -l) == 2 ]] || fail "nothing expected: $(cat line)"
[[ -s here/scaling-efficiency.dat && -s here/scaling-phases.dat ]] || fail "no data"
# Every bar's parts make the step that the JSON has.
grep -o '"step_ms":[0-9.e+-]*' line | cut -d: -f2 >steps
"$SOURCE_ROOT/scripts/check-lab" here || fail "parts that do not add up: $(cat here/scaling-phases.dat)"
grep '^"' here/scaling-phases.dat | sed 's/.* //' >wholes
paste wholes steps | awk '{ if ($1 < 0.999 * $2 || $1 > 1.001 * $2) bad = 1 } END { exit bad || NR != 4 }' ||
    fail "not the steps: $(paste wholes steps)"

# The table: two rows here, the others say what is missing (or have a GPU). It is not the older study's work, and does not look like it.
pgpt lab table --steps 1 --tokens 3 --ranks 2 --json --out here -- "${SMALL[@]}" --vocab 700
[[ $(tail -n 1 out | grep -o '"older_train_s":null' | wc -l) == 4 ]] || fail "not four rows, or with older seconds: $(tail -n 1 out)"
grep -q '^1 layer, 2 heads, 16 channels, .*; a made text, ' out || fail "another head: $(head -n 1 out)"
grep -q '^Training: 1 step of 64 tokens$' out || fail "another head: $(cat out)"
grep -q '^Generating 3 tokens without a KV cache$' out || fail "no second table: $(cat out)"
grep -q "^The older study's seconds are left out" out || fail "does not say why nothing is compared: $(cat out)"
grep -q '^# Training a GPT of 1 layer, 16 channels: 1 step of 64 tokens$' here/table.dat || fail "another title: $(head -n 1 here/table.dat)"
grep -q '^# Generating 3 tokens without a KV cache' here/table-text.dat || fail "no second picture"
! grep -q '15264\|older' here/table.dat || fail "older seconds: $(cat here/table.dat)"
tail -n 1 out | grep -Eq '"name":"MPI","missing":null,"recorded":null,"machine":"[^"]+","ranks":2,"measured_train_s":[0-9]' ||
    fail "no row of MPI: $(tail -n 1 out)"
tail -n 1 out | grep -Eq '"generate_s":[0-9.e-]+,"generate_tokens_per_s":[0-9.e-]+.*"cached_generate_s":[0-9]' || fail "no text: $(tail -n 1 out)"
grep -Eq 'no GPU here|"name":"CUDA","missing":null' out || fail "CUDA is not marked"
grep -q 'a text of 290599 bytes was made' err || fail "does not say what it trains on: $(cat err)"
grep -q "cores; MPI: 2 ranks of 1 thread.*; 20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]" here/table.dat || fail "no machine: $(head here/table.dat)"
printf 'It was a dark and stormy night. %.0s' {1..40} >stormy.txt
pgpt lab table --steps 1 --tokens 3 --ranks 2 --data stormy.txt --out here -- "${SMALL[@]}"
grep -q '; stormy.txt, ' out || fail "not the given text: $(head -n 1 out)"
! grep -q 'was made' err || fail "makes a text beside the given one: $(cat err)"
refused '/--quick and --steps exclude each other/' lab table --quick --steps 3
refused '/--record is for the whole study/' lab table --quick --record
refused '/--record is for the whole study/' lab table --record -- --batch 4
refused '/--record is for the whole study/' lab table --record --ranks 2 --tokens 5

# A launcher that is not there, or no program at all.
refused "/there is no launcher 'no-such-mpirun'/" lab scaling --ranks 2 --launcher no-such-mpirun
refused "/a quote .* not closed/" lab scaling --ranks 2 --launcher "mpirun 'x"

# What a run dies of is said; nothing stays behind. First the data goes away between two runs.
launcher() {
    # shellcheck disable=SC2016 # the script expands it
    printf '#!/bin/bash\n[[ $1 == --version ]] && exit 0\n%s\n' "$1" >launcher
    chmod +x launcher
}
printf 'It was a dark and stormy night. %.0s' {1..40} >text.txt
launcher "rm -f text.txt; exec \"$MPIEXEC\" \"\$@\""
before=$(find . | sort)
code=0
timeout 60 "$PGPT" lab scaling --ranks 1,2 --mode weak --steps 1 --warmup 0 --launcher ./launcher --out new/folder -- "${SMALL[@]}" \
    --data text.txt >out 2>err || code=$?
[[ $code == 2 ]] || fail "exit $code when the data went away: $(cat err)"
grep -q "cannot find 'text.txt'" err || fail "does not say what is missing: $(cat err)"
[[ $(find . | sort) == "$(echo "$before" | grep -v 'text.txt')" ]] || fail "left behind: $(find . | sort | diff - <(echo "$before"))"

launcher 'kill -9 $$'
code=0
timeout 60 "$PGPT" lab collectives --ranks 2 --sizes 1K --launcher ./launcher --out new >out 2>err || code=$?
[[ $code == 1 && $(cat err) == *'signal 9'* && ! -e new ]] || fail "exit $code after a kill: $(cat err)"

# A rank that dies: its name, and not what could be done with a run that is gone by then.
code=0
timeout 60 "$PGPT" lab scaling --ranks 2 --mode weak --steps 3 --no-predict --quiet --out new -- "${SMALL[@]}" --fault kill:1:3 >out 2>err ||
    code=$?
[[ $code == 1 && $(cat err) == *': rank 1 ('*'is gone'* && $(cat err) != *'ending the job'* && ! -e new ]] ||
    fail "exit $code after a rank was killed: $(cat err)"

# One that hangs is ended, by --timeout or with us.
launcher 'echo $$ >pid; exec sleep 100'
code=0
timeout 60 "$PGPT" lab table --steps 1 --timeout 1 --launcher ./launcher --out new -- "${SMALL[@]}" >out 2>err || code=$?
[[ $code == 1 && $(cat err) == *'without a result'* && ! -e new ]] || fail "exit $code after a hang: $(cat err)"
code=0
timeout -s TERM 3 "$PGPT" lab scaling --ranks 2 --launcher ./launcher --out new -- "${SMALL[@]}" >out 2>err || code=$?
[[ $(cat err) == *interrupted* && ! -e new ]] || fail "exit $code after a signal: $(cat err)"
! kill -0 "$(cat pid)" 2>/dev/null || fail "the run goes on without us"

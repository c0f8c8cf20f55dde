#!/bin/bash
# pgpt lab: the list, misspelt names, lists of numbers, pictures with and without gnuplot, and a study in one process.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

pgpt lab
cp out list
for study in linear collectives scaling table flops attention experts; do
    grep -q "pgpt lab $study " list || fail "$study is not listed"
    pgpt lab $study --help
    grep -q "usage: pgpt lab $study" out || fail "lab $study --help: $(head -n 3 out)"
    for option in out json; do grep -q -e "--.*$option" out || fail "lab $study has no --$option"; done
done
pgpt man
sed 's/\\-/-/g' out >manual
grep -q 'pgpt lab collectives' manual || fail "the studies are not in the manual"

refused "/did you mean 'scaling'/" lab sclaing
refused "/'pgpt lab' lists them/" lab zzzzzzzz
refused '/did you mean --ranks/' lab scaling --rank 2
refused '/--ranks .0.*between 1 and/' lab scaling --ranks 0
for study in scaling staleness table; do
    refused '/leave --help out there/' lab $study -- --help
    refused "/--out cannot be given.*pgpt lab $study --help/" lab $study -- --out elsewhere
done
refused "/'a' is not a whole number/" lab scaling --ranks a,b
refused '/is not a whole number/' lab scaling --ranks 1,
refused '/has 2 twice/' lab scaling --ranks 1,2,2
refused '/is not a whole number/' lab scaling --ranks 99999999999999999999
refused '/--threads/' lab scaling --threads -1
refused "/'-3' is not a whole number/" lab collectives --sizes -3
refused '/is not a whole number/' lab collectives --sizes 1K,junk
refused '/is not a whole number/' lab collectives --sizes 900G
refused '/--ranks/' lab collectives --ranks 1
refused "/--sizes '4K,7': 7 bytes are no whole number.*give 8/" lab collectives --sizes 4K,7
refused "/--ranks wants a whole number between 2 and/" lab table --ranks 1
refused '/--steps/' lab table --steps 0
refused '/did you mean --batch/' lab scaling -- --bach 3
refused '/the study sets it/' lab scaling -- --threads 3
refused '/the study sets it/' lab table -- --device cpu
refused '/leave --help out/' lab scaling -- --help
refused '/leave --help out/' lab table -- --help
refused '/no sequence for each/' lab scaling --ranks 1,16 --mode strong -- --batch 4
refused '/no whole batch/' lab scaling --ranks 2,3 -- --batch 7
for study in linear collectives 'scaling --schedules' scaling table staleness 'timeline trace.json'; do
    # shellcheck disable=SC2086 # words
    refused "/--out is empty/" lab $study --out ''
done
refused '/--note has a line break/' lab linear --note $'a\nb'
refused '/--note is not UTF-8/' lab linear --note $'a\xff'
refused '/--note has 201 characters/' lab linear --note "$(printf 'é%.0s' {1..201})"
touch file
for study in linear collectives 'scaling --schedules' scaling table 'staleness --parts overlap'; do # before anything is measured
    # shellcheck disable=SC2086 # words
    refused '/cannot make folder file/sub: file is a file/' lab $study --quiet --out file/sub
done
refused "/trains nothing/" lab scaling --schedules -- --batch 4
refused '/at most|between|memory|GiB/' lab scaling --schedules --rows 100000000000
refused "/cannot find 'nowhere.txt'/" lab scaling --quiet --ranks 1 -- --data nowhere.txt

# OpenMP's schedules: a table, the data, a picture if there is gnuplot; the data alone if there is none.
pgpt lab scaling --schedules --quick --threads 1,2 --rows 2000 --rounds 1 --json --out with
tail -n 1 out | grep -q '"command":"lab scaling"' || fail "no JSON at the end: $(tail -n 1 out)"
grep -q 'uneven rows' out || fail "no table"
[[ $(grep -o '"schedule":"guided"' out | wc -l) == 6 ]] || fail "not 6 measurements of guided"
[[ -s with/schedules.dat && -s with/schedules.gp ]] || fail "no data"
if command -v gnuplot >/dev/null; then
    [[ -s with/schedules.svg && -s with/schedules.png ]] || fail "no picture"
    grep -q 'pgpt lab scaling --schedules --quick --threads 1,2 --rows 2000' with/schedules.svg || fail "no caption"
    grep -q 'picture: with/schedules.svg' err || fail "does not say where the picture is: $(cat err)"
fi

# A note is shown, whatever is in it; nothing of it is run. It is no part of the command below it.
# shellcheck disable=SC2016 # it must not be expanded, by nobody
pgpt lab scaling --schedules --rows 2000 --rounds 1 --out with --note 'it'"'"'s `touch here` "$HOME" {x} \n %s <b> @y & é'
[[ ! -e here && ! -e with/here ]] || fail "a note was run"
# shellcheck disable=SC2016
grep -qF '# note: it'"'"'s `touch here` "$HOME" {x} \n %s <b> @y & é' with/schedules.dat || fail "no note: $(head -n 4 with/schedules.dat)"
grep -q '^# made by: pgpt lab scaling --schedules --rows 2000 --rounds 1$' with/schedules.dat || fail "$(head -n 3 with/schedules.dat)"
! command -v gnuplot >/dev/null || grep -q 'touch here.*&lt;b' with/schedules.svg || fail "the picture has no note"
mkdir empty
PATH=$PWD/empty pgpt lab scaling --schedules --rows 2000 --rounds 1 --out without
[[ -s without/schedules.dat && ! -e without/schedules.svg && ! -e without/schedules.png ]] || fail "a picture without gnuplot"
grep -q 'gnuplot is not installed; the data is in without/schedules.dat' err || fail "says: $(cat err)"
grep -q '(cd without && gnuplot schedules.gp)' err || fail "does not say how to draw it: $(cat err)"
cat >empty/gnuplot <<'END'
#!/bin/sh
exit 3
END
chmod +x empty/gnuplot
PATH=$PWD/empty:/bin pgpt lab scaling --schedules --rows 2000 --rounds 1 --out without
grep -q 'gnuplot failed' err || fail "says: $(cat err)"
[[ -z $(find without -name '*tmp*') ]] || fail "left behind: $(ls without)"

# FLOPs: parts make a whole, in the counts, in the time and in the pictures; the formula stands beside.
refused "/'13M' is no size of the ladder; choose among 125M/" lab flops --sizes 125M,13M
refused '/has 13B twice/' lab flops --sizes 13B,13B
refused "/--sizes '13B,': '' is no size/" lab flops --sizes 13B,
refused "/--measure 'nanoo' is no preset/" lab flops --measure nanoo
refused '/--sequences .0,/' lab flops --sequences 0,4
pgpt lab flops --quick --steps 1 --measure-batch 1 --threads 1 --json --out flops
grep -q 'Timed here: nano ' out || fail "nothing was timed: $(cat out)"
[[ $(tail -n 1 out | grep -o '"standard_flops":[0-9]' | wc -l) == 4 ]] || fail "not four sizes: $(tail -n 1 out)"
for name in flops flops-time; do
    (($(grep -c '^"' flops/$name.dat) >= 2)) || fail "$name has one bar: $(cat flops/$name.dat)"
    grep -q '^# stacked: ' flops/$name.dat || fail "$name: $(cat flops/$name.dat)"
done
"$SOURCE_ROOT/scripts/check-lab" flops || fail "parts that are no whole: $(cat flops/flops.dat flops/flops-time.dat)"
[[ $(grep -c '^# series' flops/flops-sequence.dat) == 4 ]] || fail "not a curve a size: $(cat flops/flops-sequence.dat)"
pgpt lab flops --sizes 350M --sequences 128 --sequence 64 --measure none --json --out flops2
tail -n 1 out | grep -q '"measured":null' || fail "measured all the same: $(tail -n 1 out)"
[[ ! -e flops2/flops-time.dat ]] || fail "a picture of what was not timed"

# Training runs of one rank need no launcher.
rm empty/gnuplot
PATH=$PWD/empty pgpt lab scaling --ranks 1 --threads 1,2 --mode weak --quick --json --out one -- \
    --layers 1 --heads 2 --channels 16 --context 16 --batch 2
tail -n 1 out >line
[[ $(grep -o '"step_ms":[0-9]' line | wc -l) == 2 ]] || fail "not two points: $(cat line)"
grep -q '"threads":2,"batch":4' line || fail "the batch does not grow with the threads: $(cat line)"
grep -q '"efficiency":1' line || fail "no efficiency: $(cat line)"
[[ -z $(find one -name '.runs*') ]] || fail "runs were left behind"

# Experts: every way has the FLOPs of the first, to a step of its own; loads are as often there as losses.
refused "/'tpok' is neither dense nor a router/" lab experts --ways dense,tpok
refused '/--ways has topk twice/' lab experts --ways topk,dense,topk
refused '/topk sends a token to 5 of --experts 4/' lab experts --ways dense,topk --experts 4 --experts-per-token 5
refused '/--model moe-mini has experts already/' lab experts -- --model moe-mini
refused '/--router cannot be given/' lab experts -- --router switch
pgpt lab experts --ways dense,switch,expert-choice --experts 4 --steps 12 --points 3 --threads 1 --json --out mixed -- \
    --layers 2 --heads 2 --channels 16 --context 16 --batch 2
tail -n 1 out >line
read -r -a flops < <(grep -o '"flops_per_step":[0-9.e]*,"flops":[0-9.e]*' line | tr -c '0-9.e\n' ' ' | awk '{ printf "%s %s ", $(NF - 1), $NF } END { print "" }')
((${#flops[@]} == 6)) || fail "not three ways: $(cat line)"
for i in 2 4; do
    awk "BEGIN { d = ${flops[i + 1]} - ${flops[1]}; exit !(d < 0.51 * ${flops[i]} && -d < 0.51 * ${flops[i]}) }" ||
        fail "other FLOPs than the first: ${flops[*]}"
done
[[ $(grep -o '"val_loss":[0-9]' line | wc -l) == 12 ]] || fail "not three points a curve, and the last: $(cat line)"
grep -Eq 'At .* FLOPs (none|switch|expert-choice) has learned m' out || fail "no words: $(cat out)"
(($(grep -c '<rect' mixed/experts-load.svg) > 20)) || fail "no picture of loads"
[[ $(grep -c '^# series' mixed/experts-loss.dat) == 3 && -s mixed/experts-time.dat ]] || fail "$(head mixed/experts-loss.dat)"
[[ -z $(find mixed -mindepth 1 -type d) ]] || fail "runs are left behind: $(ls mixed)"

# Options of experts are of those ways that know them; what one of them cannot be is said before the first is trained.
pgpt lab experts --ways dense,switch,balance-free,topk --experts 4 --steps 4 --points 1 --threads 1 --json --out own -- \
    --layers 2 --heads 2 --channels 16 --context 16 --batch 2 --expert-capacity 0.25 --balance-loss=0.1 --z-loss 0 \
    --router-gate sigmoid --bias-rate 0.1
(($(tail -n 1 out | grep -o '"dropped":0[.][1-9]' | wc -l) == 3)) || fail "nothing is dropped: $(tail -n 1 out)"
refused '/--router expert-choice and --depth-capacity do not go together/' lab experts -- --depth-capacity 0.5

# A study that is told to stop ends its run, and leaves nothing of it.
stopped() {
    "$PGPT" lab "$@" --threads 1 --out stopped -- --layers 2 --heads 2 --channels 16 --context 16 --batch 2 >out 2>err &
    local job=$! run code=0
    for _ in {1..600}; do
        run=$(tr -d " " <"/proc/$job/task/$job/children")
        [[ -n $run ]] && grep -q 1000000 "/proc/$run/cmdline" && break
        sleep 0.1
    done
    kill -TERM "$job"
    wait "$job" || code=$?
    [[ $code == 1 && $(cat err) == *interrupted* && ! -e stopped ]] || fail "exit $code after a signal: $(cat err; ls -a stopped)"
    ! kill -0 "$run" 2>/dev/null || fail "the run goes on without us"
}
stopped experts --ways dense --steps 1000000
stopped attention --patterns dense --sequences 64 --heads 1 --repeats 1 --train-patterns dense --steps 1000000

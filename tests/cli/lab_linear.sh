#!/bin/bash
# pgpt lab linear: both engines find the weights again, whatever their number; the table, the pictures' data and the JSON say
# so; nonsense is refused. With several ranks: mpi_lab_linear.sh.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

W='0.500593,-0.0807231,1.17474,-1.45482,-0.629856'

# list KEY: the numbers of the first list of that name in the JSON line, one a line.
list() {
    tail -n 1 out | grep -o "\"$1\":\[[^]]*\]" | head -n 1 | grep -Eo '[-0-9.e+]+' | grep '[0-9]'
}

# top KEY: a field of the JSON line before the list of engines.
top() {
    tail -n 1 out | sed 's/"engines".*//' | field "$1"
}

# near TOLERANCE A B: two lists, one number a line, absolute difference at most so much.
near() {
    [[ -n $2 ]] || depth=1 fail "no numbers"
    paste <(echo "$2") <(echo "$3") | awk -v tolerance="$1" '
        NF != 2 { exit 1 }
        { d = $1 - $2; if (!(d <= tolerance && -d <= tolerance)) exit 1 }' ||
        depth=1 fail "not within $1: $(paste <(echo "$2") <(echo "$3"))"
}

# ---- As a user calls it, but for the rounds.
pgpt lab linear --rounds 1 --json
tail -n 1 out | check_json
near 1e-8 "$(list weights)" "${W//,/$'\n'}"
near 0 "$(list true_weights)" "${W//,/$'\n'}"
for key in ranks:1 points:10000 all_points:10000 epochs:300 engine:scalar recovered:true scaling:weak efficiency:null; do
    [[ $(top "${key%:*}") == "${key#*:}" ]] || fail "$key is not so: $(tail -n 1 out)"
done
for name in forward backward communication update all scalar: tensor:; do
    grep -q "^$name " out || fail "the table has no line '$name': $(cat out)"
done
# 12 operations a point, forward and backward; one division a piece for the addition that its first point does not need.
[[ $(top node_evaluations) == 72000000 ]] || fail "evaluations: $(tail -n 1 out)"
# The phases add up to the whole.
awk -v whole="$(top seconds)" -v forward="$(top forward_ms)" -v backward="$(top backward_ms)" -v comm="$(top comm_ms)" \
    -v update="$(top update_ms)" 'BEGIN { whole *= 1000; sum = forward + backward + comm + update
        exit !(sum <= 1.001 * whole && sum >= 0.5 * whole && forward > 0 && backward > 0) }' ||
    fail "the phases do not add up: $(tail -n 1 out)"
for name in linear linear_time; do
    [[ -s runs/lab/$name.dat && -s runs/lab/$name.gp ]] || fail "$name is not there: $(ls runs/lab)"
    if command -v gnuplot >/dev/null; then
        [[ -s runs/lab/$name.svg && -s runs/lab/$name.png ]] || fail "there is no picture: $(ls runs/lab)"
        grep -q 'pgpt lab linear --rounds 1' "runs/lab/$name.svg" || fail "$name.svg does not say what made it"
    fi
done
(($(grep -vc '^#' runs/lab/linear.dat) >= 300)) || fail "the losses: $(head runs/lab/linear.dat)"

# ---- Other weights, one engine at a time; points that fill no whole piece; threads.
for engine in scalar tensor; do
    for words in '7 --points 301' '1,2,3,4,5,6,7,8,9,10,11,12 --points 5000' '-0.25,0,1000 --points 700 --threads 3'; do
        # shellcheck disable=SC2086 # several words
        pgpt lab linear --engine $engine --rounds 1 --epochs 400 --json --weights=${words%% *} ${words#* }
        [[ $(top engine) == "$engine" ]] || fail "another engine: $(tail -n 1 out)"
        near 2e-3 "$(list weights)" "$(tr , '\n' <<<"${words%% *}")"
    done
done
# The same bits with any number of threads, dealt in any way.
pgpt lab linear --engine scalar --rounds 1 --points 3000 --noise 0.5 --epochs 20 --json
one=$(list weights)
for schedule in static dynamic guided; do
    pgpt lab linear --engine scalar --rounds 1 --points 3000 --noise 0.5 --epochs 20 --json --threads 2 --schedule $schedule
    near 0 "$(list weights)" "$one"
done
# Noise is noise: another answer, near the first. Seeds differ, and weights of zero are found too.
near 0.2 "$one" "${W//,/$'\n'}"
pgpt lab linear --engine scalar --rounds 1 --points 3000 --noise 0.5 --epochs 20 --json --seed 2
[[ $(list weights) != "$one" ]] || fail "the seed changes nothing"
pgpt lab linear --weights 0,0 --rounds 1 --points 50 --json
near 0 "$(list weights)" $'0.0\n0.0'
# What cannot be found again is said.
pgpt lab linear --points 3 --rounds 1 --json
grep -q 'warning: 3 points do not determine 5 weights' err || fail "no warning: $(cat err)"
[[ $(top recovered) == false ]] || fail "three points were enough: $(tail -n 1 out)"

# ---- No gnuplot: the data is there, and the words say how to draw it.
mkdir empty
code=0
env PATH="$PWD/empty" "$PGPT" lab linear --rounds 1 --points 100 --out plain >out 2>err || code=$?
((code == 0)) || fail "without gnuplot: exit $code: $(cat err)"
grep -q 'install gnuplot' err || fail "does not say how to draw it: $(cat err)"
[[ -s plain/linear.dat && ! -e plain/linear.svg ]] || fail "$(ls plain)"

# ---- Nonsense.
refused '/--points wants/' lab linear --points 0
refused '/--points wants/' lab linear --points -5
refused '/--epochs wants/' lab linear --epochs 0
refused '/--lr wants/' lab linear --lr -0.1
refused '/--lr wants/' lab linear --lr 0
refused '/--rounds wants/' lab linear --rounds 0
refused '/--engine wants/' lab linear --engine quantum
refused '/the loss grew from .* to inf.*lower --lr/' lab linear --lr 50 --points 100
refused '/the loss grew from .*lower --lr/' lab linear --lr 1.2 --points 100 --epochs 20
refused "/'a' is not a number/" lab linear --weights 1,a,2
refused "/'' is not a number/" lab linear --weights 1,,2
refused "/--weights is empty/" lab linear --weights ''
refused "/'' is not a number/" lab linear --weights 1,2,
refused "/'nan' is not a number/" lab linear --weights nan
refused "/'1e7' is not a number between/" lab linear --weights 1e7
refused '/more than 1024 numbers/' lab linear --weights "$(seq -s , 1025)"
refused '/needs .* lower --points/' lab linear --points 1G --weights "$(seq -s , 500)"
refused '/--schedule means nothing to one thread/' lab linear --schedule guided
refused "/--schedule is the scalar engine's/" lab linear --schedule guided --threads 2 --engine tensor
refused '/there is no study/' lab linera

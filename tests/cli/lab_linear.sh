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
# The phases add up to the whole, in the JSON and in the picture's data.
awk -v whole="$(top seconds)" -v forward="$(top forward_ms)" -v backward="$(top backward_ms)" -v comm="$(top comm_ms)" \
    -v update="$(top update_ms)" -v waiting="$(top waiting_ms)" 'BEGIN { whole *= 1000
        sum = forward + backward + comm + update + waiting
        exit !(sum <= 1.001 * whole && sum >= 0.999 * whole && forward > 0 && backward > 0) }' ||
    fail "the phases do not add up: $(tail -n 1 out)"
grep -v '^#' runs/lab/linear_time.dat | sed 's/"[^"]*"//' | awk '{ a += $1; b += $2 }
    END { exit !(NR == 5 && a > 99 && a < 101 && b > 99 && b < 101) }' ||
    fail "the shares are not 100 %: $(cat runs/lab/linear_time.dat)"
grep -q '^# note: .* core.*1 rank, 1 thread; 20[0-9][0-9]-[01][0-9]-[0-3][0-9]' runs/lab/linear_time.dat ||
    fail "no machine: $(head -n 4 runs/lab/linear_time.dat)"
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
    for words in '7.0 --points 301' '1,2,3,4,5,6,7,8,9,10,11,12 --points 5000' '-0.25,0,1000 --points 700 --threads 3'; do
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

# ---- As many weights as a whole number says, drawn from the seed.
pgpt lab linear --weights 40 --points 2000 --rounds 1 --epochs 200 --json
(($(list weights | wc -l) == 40)) || fail "not 40 weights: $(tail -n 1 out)"
near 1e-6 "$(list weights)" "$(list true_weights)"
drawn=$(list true_weights)
pgpt lab linear --weights 40 --points 2000 --rounds 1 --epochs 5 --json --seed 2
[[ $(list true_weights) != "$drawn" ]] || fail "the seed draws no other weights"

# ---- Nodes allocated one by one: the same weights, to the last bit.
pgpt lab linear --graph allocate --threads 2 --points 600 --epochs 100 --rounds 1 --json --out graph
[[ $(tail -n 1 out | field weights_apart) == 0.0 ]] || fail "other weights: $(tail -n 1 out)"
near 1e-8 "$(tail -n 1 out | field largest_error)" 0
(($(tail -n 1 out | grep -o '"graph":"allocate","threads":[12]' | wc -l) == 2)) || fail "$(tail -n 1 out)"
grep -q 'with 2 threads, nodes that are allocated one by one take [0-9.]* times as long' out || fail "$(cat out)"
[[ -s graph/linear-graph.dat ]] || fail "no data: $(find graph)"

# ---- What each thread does: all points are dealt, whatever the schedule.
pgpt lab linear --schedules --threads 2 --points 3000 --epochs 3 --rounds 1 --json --out loops
(($(grep -c '^schedule(' out) == 12)) || fail "the table: $(cat out)"
grep -q '^schedule(dynamic, 4) ' out || fail "the table: $(cat out)"
tail -n 1 out | grep -o '"points":\[[^]]*\]' | tr -d 'a-z":[]' | awk -F, '$1 + $2 > 2999 && $1 + $2 < 3001 { n++ }
    END { exit !(n == 12 && NR == 12) }' || fail "points are lost: $(tail -n 1 out)"
[[ -s loops/linear-schedules.dat ]] || fail "no data: $(find loops)"

# ---- An attention block of numbers learns to look one token back, and divided work gives the same loss.
pgpt lab linear --problem attention --rounds 1 --json --out block
awk -v loss="$(top loss)" -v first="$(top first_loss)" -v right="$(top accuracy)" \
    'BEGIN { exit !(first > 1.3 && loss < 0.05 && right > 0.95) }' || fail "it did not learn: $(tail -n 1 out)"
[[ $(top recovered) == null && $(top engine) == scalar ]] || fail "$(tail -n 1 out)"
pgpt lab linear --problem attention --rounds 1 --points 8 --epochs 20 --json --out block
one=$(top loss)
pgpt lab linear --problem attention --rounds 1 --points 8 --epochs 20 --json --out block --threads 3 --schedule dynamic
[[ $(top loss) == "$one" ]] || fail "threads change the loss: $(top loss), not $one"

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
refused '/between 1 and 65536/' lab linear --weights 0
refused '/between 1 and 65536/' lab linear --weights 100000
refused '/--weights is of least squares/' lab linear --problem attention --weights 3
refused '/made of single numbers/' lab linear --problem attention --engine tensor
refused '/--schedules compares threads/' lab linear --schedules
refused "/--schedules is the scalar engine's/" lab linear --schedules --threads 2 --engine tensor
refused '/two studies/' lab linear --schedules --threads 2 --graph allocate
refused '/leave out --strong/' lab linear --ranks 1 --strong
refused "/--ranks 'x'/" lab linear --ranks x
refused "/--sweep '0'/" lab linear --sweep 0
refused '/cannot be divided among 4 ranks/' lab linear --ranks 1,4 --points 3
refused '/--device cuda is for the tensor engine/' lab linear --device cuda --engine scalar
refused '/--device cuda/' lab linear --device cuda --rounds 1 --points 10 # no GPU here: the tests see none
refused '/more than 1024 numbers/' lab linear --weights "$(seq -s , 1025)"
refused '/needs .* lower --points/' lab linear --points 1G --weights "$(seq -s , 500)"
refused '/--schedule means nothing to one thread/' lab linear --schedule guided
refused "/--schedule is the scalar engine's/" lab linear --schedule guided --threads 2 --engine tensor
refused '/there is no study/' lab linera

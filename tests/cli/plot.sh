#!/bin/bash
# pgpt plot: in characters and as files; runs of different length, resumed, broken, empty, of the same name.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
export LC_ALL=C COLUMNS=80

pgpt train "${TINY[@]}" --steps 12 --eval-every 4 --out a/run
pgpt train "${TINY[@]}" --steps 6 --lr 1e-2 --out b/other
pgpt train "${TINY[@]}" --steps 9 --lr 1e-2 --resume b/other

# The terminal: a panel a curve, marks of both runs, an axis that reaches to the longer one.
pgpt plot a/run b/other
for words in '^1 run (A validation)$' '^2 other (B validation)$' '^loss$' '^learning rate$' '^gradient norm$' '^tokens/s$' '  step$'; do
    grep -q "$words" out || fail "no '$words': $(cat out)"
done
for mark in 1 2 A B; do sed -n '/^loss$/,/^learning rate$/p' out | grep -q "|.*$mark" || fail "no mark $mark: $(cat out)"; done
grep -q '^           1  .*  12$' out || fail "another axis: $(cat out)"
grep -q '^run: steps 1 to 12, loss [0-9.]*, best validation loss [0-9.]* (step [0-9]*)' out || fail "no summary: $(cat out)"
grep -q '^other: steps 1 to 9,' out || fail "a resumed run: $(cat out)"
(($(awk '{ if (length($0) > n) n = length($0) } END { print n }' out) <= 100)) || fail "too wide: $(cat out)"
LC_ALL=C.UTF-8 pgpt plot a/run --curves loss --quiet
grep -q '⠤⠤ run (o validation)' out || fail "no dots: $(cat out)"
! grep -q 'learning rate\|steps 1 to' out || fail "more than was asked for: $(cat out)"
ln -s ../a/run runs/latest 2>/dev/null || { mkdir -p runs && ln -sfn ../a/run runs/latest; }
pgpt plot --x tokens --log-x --log-y --smooth 3
grep -q '^loss, logarithmic, mean over 3 steps$' out || fail "says not how: $(cat out)"
grep -q 'tokens, logarithmic' out || fail "another axis: $(cat out)"
pgpt plot a/run --x time --curves speed
grep -q 'time in steps (s)' out || fail "another axis: $(cat out)"

# Files: the data in any case, a picture with gnuplot. Curves are what the run wrote.
# shellcheck disable=SC2016 # nobody is to expand it
pgpt plot a/run b/other --out pictures/two --title 'it'"'"'s `touch here` {x} <b>' --json
tail -n 1 out | check_json
[[ $(tail -n 1 out | grep -o '"last_step":[0-9]*' | tr '\n' ' ') == '"last_step":12 "last_step":9 ' ]] || fail "$(tail -n 1 out)"
[[ -s pictures/two.dat && -s pictures/two.gp && ! -e here && ! -e pictures/here ]] || fail "no data: $(ls pictures)"
grep -q '^# note: .*core.*; 1 rank; 20[0-9][0-9]-' pictures/two.dat || fail "no machine: $(head -n 4 pictures/two.dat)"
[[ $(grep -c '^# series: run: ' pictures/two.dat) == 5 ]] || fail "not five curves: $(grep series pictures/two.dat)"
awk '/series: run: loss/ { f = 1; next } /^$/ { f = 0 } f { print $2 }' pictures/two.dat >drawn
field loss <a/run/metrics.jsonl >written
[[ $(wc -l <drawn) == 12 ]] || fail "not 12 points: $(cat drawn)"
paste drawn written | awk '{ if ($1 / $2 < 0.9999999 || $1 / $2 > 1.0000001) exit 1 }' || fail "other losses: $(paste drawn written)"
if command -v gnuplot >/dev/null; then
    [[ -s pictures/two.svg && -s pictures/two.png ]] || fail "no picture: $(cat err)"
    pgpt plot a/run --out one.svg
    [[ -s one.svg && ! -e one.png ]] || fail "--out one.svg: $(find . -maxdepth 1)"
    ! grep -q '^loss$' out || fail "draws in the terminal too"
    pgpt plot a/run --out one.png --terminal
    [[ -s one.png ]] || fail "--out one.png"
    grep -q '^loss$' out || fail "--terminal does nothing"
fi
mkdir empty
PATH=$PWD/empty pgpt plot a/run --out without/one
grep -q 'gnuplot is not installed; the data is in without/one.dat' err || fail "says: $(cat err)"
grep -q '^loss$' out || fail "nothing is drawn where there is no gnuplot: $(cat out)"
[[ -s without/one.gp && ! -e without/one.svg ]] || fail "$(ls without)"

# Names: the same last part is told apart; the same run twice is a mistake.
mkdir -p c && cp -r a/run c/run
pgpt plot a/run c/run/ --curves loss
grep -q '^1 a/run ' out || fail "names: $(head -n 2 out)"
grep -q '^2 c/run' out || fail "names: $(head -n 2 out)"
refused '/runs/latest is the same run as a/run; leave one of them out/' plot a/run runs/latest

# A run that was killed in the middle of a line, one with rubbish in it, one whose steps were taken twice.
cp -r a/run killed
printf '{"step":13,"lo' >>killed/metrics.jsonl
pgpt plot killed --curves loss
grep -q 'killed: the last line of metrics.jsonl has no end yet' err || fail "says: $(cat err)"
grep -q 'steps 1 to 12,' out || fail "$(tail -n 1 out)"
cp -r a/run rubbish
{ sed -n 1,4p a/run/metrics.jsonl; printf 'rubbish\n[1]\n\377\n'; sed -n '5,$p' a/run/metrics.jsonl; } >rubbish/metrics.jsonl
pgpt plot rubbish --curves loss --json
grep -q 'rubbish: 3 lines of metrics.jsonl cannot be read and are left out, the first is line 5' err || fail "says: $(cat err)"
[[ $(tail -n 1 out | field points) == 12 ]] || fail "$(tail -n 1 out)"
cp -r a/run again
{ cat a/run/metrics.jsonl; sed -n '9,13p' a/run/metrics.jsonl; } >again/metrics.jsonl
pgpt plot again/metrics.jsonl --curves loss --json
grep -q '5 steps in it twice, taken again after a resume' err || fail "says: $(cat err)"
[[ $(tail -n 1 out | field points) == 12 && $(tail -n 1 out | field steps_again) == 5 ]] || fail "$(tail -n 1 out)"

# What cannot be drawn at all.
mkdir nothing begun
head -n 1 a/run/metrics.jsonl >begun/metrics.jsonl
printf 'x\ny\n' >text
refused "/there is no 'missing'; give a run's folder/" plot missing
refused '/nothing has no metrics.jsonl: it is no run/' plot nothing
refused '/begun/metrics.jsonl has no steps yet/' plot a/run begun
refused '/text has no step that can be read: 2 lines of it are no JSON objects/' plot text
: >begun/metrics.jsonl
refused '/has no steps yet/' plot begun
refused "/--curves 'loss,los': 'los' is not known; choose among loss, rate, norm and speed/" plot a/run --curves loss,los
refused '/pictures are .svg or .png/' plot a/run --out x.pdf
refused "/a picture's name is of letters/" plot a/run --out 'x y.svg'
many=()
for i in {1..25}; do many+=("run$i"); done
refused '/too many to tell apart/' plot "${many[@]}"
rm runs/latest
refused "/there is no 'runs/latest'/" plot
sed 's/,"grad_norm":[0-9.e+-]*//' a/run/metrics.jsonl >text
refused '/none of --curves was measured/' plot text --curves norm
pgpt plot text --curves norm,loss
grep -q 'no run has a gradient norm' err || fail "says: $(cat err)"
pgpt plot --help
grep -q 'usage: pgpt plot' out || fail "no help"

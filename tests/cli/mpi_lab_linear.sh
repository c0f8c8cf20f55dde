#!/bin/bash
# pgpt lab linear on several ranks: the same weights as one process finds, from points of their own and from divided ones; the
# efficiency is measured in the same launch; what all ranks do wrong is said once.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

W='0.500593,-0.0807231,1.17474,-1.45482,-0.629856'

# weights ENGINE: those that this engine found, one a line.
weights() {
    tail -n 1 out | sed 's/.*"engines"//' | grep -o "\"engine\":\"$1\",\"weights\":\[[^]]*\]" | grep -Eo '[-0-9.e+]*[0-9]'
}

# near TOLERANCE A B: two lists, absolute difference at most so much.
near() {
    [[ -n $2 ]] || depth=1 fail "no numbers"
    paste <(echo "$2") <(echo "$3") | awk -v tolerance="$1" '
        NF != 2 { exit 1 }
        { d = $1 - $2; if (!(d <= tolerance && -d <= tolerance)) exit 1 }' ||
        depth=1 fail "not within $1: $(paste <(echo "$2") <(echo "$3"))"
}

# As a user calls it: 10,000 points a rank, both engines.
pgpt lab linear --rounds 1 --json
scalar=$(weights scalar) tensor=$(weights tensor)
for n in 2 4; do
    ranks $n lab linear --rounds 1 --json
    tail -n 1 out | check_json
    near 1e-8 "$(weights scalar)" "${W//,/$'\n'}"
    near 1e-5 "$(weights tensor)" "${W//,/$'\n'}"
    near 1e-8 "$(weights scalar)" "$scalar"
    near 1e-5 "$(weights tensor)" "$tensor"
    [[ $(tail -n 1 out | field ranks) == "$n" ]] || fail "ranks: $(tail -n 1 out)"
    [[ $(tail -n 1 out | grep -o '"all_points":[0-9]*') == "\"all_points\":$((10000 * n))" ]] || fail "$(tail -n 1 out)"
    (($(grep -c ': efficiency [0-9.]* of weak scaling' out) == 2)) || fail "no efficiency: $(cat out)"
    (($(tail -n 1 out | grep -Eo '"efficiency":[0-9.]+' | wc -l) == 3)) || fail "no efficiency: $(tail -n 1 out)"
done

# Divided points are the same points, noise and all, and give the same weights to rounding.
noisy=(lab linear --strong --points 1003 --noise 1 --epochs 60 --rounds 1 --json)
pgpt "${noisy[@]}"
scalar=$(weights scalar) tensor=$(weights tensor)
near 0.3 "$scalar" "${W//,/$'\n'}"
for n in 3 4; do
    ranks $n "${noisy[@]}"
    near 1e-8 "$(weights scalar)" "$scalar"
    near 1e-5 "$(weights tensor)" "$tensor"
    [[ $(tail -n 1 out | grep -o '"all_points":[0-9]*') == '"all_points":1003' ]] || fail "$(tail -n 1 out)"
done
ranks 2 lab linear --no-scaling --rounds 1 --points 100 --json
[[ $(tail -n 1 out | grep -o '"efficiency":null' | head -n 1) ]] || fail "an efficiency: $(tail -n 1 out)"

# --ranks starts them itself: the weights on every number of ranks, three pictures, shares that add up to 100 %, and the
# model's numbers of processes.
pgpt lab linear --ranks 1,2,3 --epochs 80 --points 600 --rounds 2 --model 30,100 --json --out scaling
tail -n 1 out | check_json
grep -q '^weights: equal to the given ones on every number of ranks' out || fail "$(cat out)"
(($(tail -n 1 out | grep -o '"recovered":true' | wc -l) == 12)) || fail "not recovered: $(tail -n 1 out)"
(($(tail -n 1 out | grep -o '"processes":100' | wc -l) == 4)) || fail "no model: $(tail -n 1 out)"
for name in linear-ranks-time linear-ranks-efficiency linear-ranks-split; do
    [[ -s scaling/$name.dat && -s scaling/$name.gp ]] || fail "no $name: $(find scaling)"
    grep -qE '^# note: .*1, 2 and 3 ranks of 1 thread(, more than there are cores)?; 20' "scaling/$name.dat" || fail "no machine: $(head -n 4 "scaling/$name.dat")"
done
"$SOURCE_ROOT/scripts/check-lab" scaling || fail "shares do not add up: $(cat scaling/linear-ranks-split.dat)"
(($(grep -c '^"' scaling/linear-ranks-split.dat) == 12)) || fail "not 12 bars: $(cat scaling/linear-ranks-split.dat)"
grep -q '^# series: scalar, weak: model' scaling/linear-ranks-efficiency.dat || fail "no model in the picture"

# The same work with more weights; a launch that fails is named.
pgpt lab linear --sweep 3,300 --weights 3 --points 300 --rounds 1 --epochs 10 --json --out sweep
[[ $(tail -n 1 out | grep -o '"weights":300,"points":3' | wc -l) == 2 && -s sweep/linear-sweep.dat ]] || fail "$(tail -n 1 out)"
refused '/pgpt lab linear .*the loss grew from/' lab linear --quiet --ranks 2 --points 100 --lr 30 --out none
at_once ranks_refused '/--ranks is run by one process/' 2 lab linear --ranks 1,2
all_done

# Mistakes of all ranks are said by one of them, and nobody waits.
rm -rf runs
at_once ranks_refused '/--points 2 cannot be divided among 3 ranks/' 3 lab linear --strong --points 2
at_once ranks_refused '/.*the loss grew from .* lower --lr/' 2 lab linear --lr 30 --points 100
at_once ranks_refused "/--weights: 'x' is not a number/" 2 lab linear --weights 1,x
all_done

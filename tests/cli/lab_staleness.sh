#!/bin/bash
# pgpt lab staleness without ranks: Hogwild's tables and counts, shares that overlap, what is refused, and --quick beside what is given.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

# Hogwild: nothing is lost by one thread, by a lock, or atomically; every way makes all of its updates.
pgpt lab staleness --parts hogwild --threads 1,3 --weights 4096 --features 4 --dense 8 --points 5000 --epochs 4 --rounds 2 --out hogwild --json
tail -n 1 out >line
check_json <line
[[ $(grep -o '"way":"' line | wc -l) == 14 ]] || fail "not 7 runs of 2 problems: $(cat line)"
sed 's/.*"hogwild":\[//; s/},{/}\n{/g' line >runs
while read -r run; do
    problem=$(field problem <<<"$run") way=$(field way <<<"$run") threads=$(field threads <<<"$run")
    updates=$((5000 * 4 * 4))
    [[ $problem == *sparse* ]] || updates=$((5000 * 4 * 8))
    [[ $(field updates <<<"$run") == "$updates" ]] || fail "updates: $run"
    [[ $way == *hogwild* && $threads != 1 ]] || [[ $(field lost_updates <<<"$run") == 0 ]] || fail "lost: $run"
done <runs
for name in hogwild-sparse hogwild-dense hogwild-speed hogwild-lost; do
    [[ -s hogwild/$name.dat && -s hogwild/$name.gp ]] || fail "no $name: $(ls hogwild)"
    grep -q '^# note: .*core.*; .*thread.*; 20[0-9][0-9]-' hogwild/$name.dat || fail "no machine, threads, date: $(head -n 4 hogwild/$name.dat)"
done
[[ $(wc -l <<<"$(find hogwild -name 'staleness*' -o -name 'overlap*')") == 1 ]] || fail "more than was asked for"

# Overlap: K losses cost nothing but time; without overlap each share is lost with its rank. --quick leaves alone what is given.
pgpt lab staleness --quick --parts overlap --nodes 4 --overlap 0,1 --lose 1 --draws 2 --overlap-steps 100 --out overlap --json
line=$(tail -n 1 out)
check_json <<<"$line"
sed 's/.*"overlap":\[//; s/},{/}\n{/g' <<<"$line" >rows
[[ $(wc -l <rows) == 8 ]] || fail "not 4 numbers of ranks by 2 overlaps: $line"
row() { # OVERLAP LOST KEY
    grep "\"overlap\":$1,\"lost_ranks\":$2," rows | field "$3"
}
[[ $(row 0 1 lost_shares) == 1.0 && $(row 1 1 lost_shares) == 0.0 && $(row 1 3 lost_shares) == 2.0 ]] || fail "shares: $(cat rows)"
[[ $(row 1 1 loss) == "$(row 0 0 loss)" ]] || fail "one loss is not covered: $(cat rows)"
awk -v a="$(row 0 1 loss)" -v b="$(row 1 1 loss)" 'BEGIN { exit !(a > b) }' || fail "overlap does not help: $(cat rows)"
grep -q 'lost after step 10 of 100' out || fail "--quick took over: $(cat out)"
grep -q 'simulated' overlap/overlap.dat || fail "not said to be simulated: $(head -n 5 overlap/overlap.dat)"
grep -q '^# series: none lost' overlap/overlap-steps.dat || fail "$(cat overlap/overlap-steps.dat)"

refused "/'rings' is none of schemes, hogwild and overlap/" lab staleness --parts schemes,rings
refused '/has overlap twice/' lab staleness --parts overlap,overlap
refused "/only the part 'schemes' trains/" lab staleness --parts hogwild -- --model nano
refused '/--features 9 of --weights 8/' lab staleness --parts hogwild --features 9 --weights 8
refused '/more updates of a weight than can be counted/' lab staleness --parts hogwild --points 200000000 --epochs 100
refused "/--threads '0'/" lab staleness --parts hogwild --threads 0
refused '/--lose 4 of --nodes 4 leaves nobody/' lab staleness --parts overlap --nodes 4 --lose 4
refused "/--overlap '4'.*between 0 and 3/" lab staleness --parts overlap --nodes 4 --overlap 4

#!/bin/bash
# The trace of several ranks: one file of valid JSON, every collective on every rank of its communicator with the same
# number, kind and size, nothing of negative length, and all ranks of an all-reduce in it at once.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

has_python() {
    command -v python3 >/dev/null && python3 -c '' 2>/dev/null
}

# check_trace FILE RANKS STEPS: by a parser that is not ours where there is one, and by our own.
check_trace() {
    local file=$1 n_ranks=$2 n_steps=$3
    pgpt lab timeline "$file" --out drawn --json
    [[ $(tail -n 1 out | field ranks) == "$n_ranks" ]] || depth=1 fail "ranks: $(tail -n 1 out)"
    [[ $(tail -n 1 out | field incomplete_collectives) == 0 ]] || depth=1 fail "unmatched: $(tail -n 1 out)"
    [[ $(tail -n 1 out | field clipped_events) == 0 ]] || depth=1 fail "not nested: $(tail -n 1 out)"
    awk -v n="$n_ranks" '!/^#/ { if ($5 != n) exit 1 }' drawn/timeline.dat || depth=1 fail "ranks: $(cat drawn/timeline.dat)"
    awk '$2 == "\"all-reduce\"" { n++; if ($9 < 0) exit 1 } END { exit !n }' drawn/timeline.dat ||
        depth=1 fail "ranks that were not in an all-reduce at once: $(cat drawn/timeline.dat)"
    (($(grep -c '"ph":"i"' "$file") == n_steps)) || depth=1 fail "marks of steps: $(grep '"ph":"i"' "$file")"
    grep -q '"machine":{"processor":.*"cores":[1-9]' "$file" || depth=1 fail "no machine: $(head -c 600 "$file")"
    grep -qE "[0-9]+ cores?; $n_ranks ranks?(, more than there are cores)?; 20[0-9-]{8}<" drawn/timeline.svg ||
        depth=1 fail "the picture does not say where: $(grep caption drawn/timeline.svg)"
    has_python || return 0
    python3 - "$file" "$n_ranks" "$n_steps" <<'END' || depth=1 fail "$file is not as it should be"
import collections, json, sys
trace, n_ranks, n_steps = json.load(open(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
events = trace["traceEvents"]
whole = [e for e in events if e["ph"] == "X"]
assert whole and all(e["dur"] >= 0 and e["ts"] >= 0 for e in whole)
names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
assert sorted(names) == list(range(n_ranks)) and all(names[r].startswith(f"rank {r} (") for r in names), names
groups = collections.defaultdict(list)
for e in whole:
    if e["cat"] == "collective":
        groups[e["args"]["communicator"], e["args"]["number"]].append(e)
flows = collections.defaultdict(list)
for e in events:
    if e["ph"] in "stf":
        flows[e["id"]].append(e)
assert len(flows) == (len(groups) if n_ranks > 1 else 0)
for of_one in flows.values():
    of_one.sort(key=lambda e: e["ts"])
    assert sorted(e["pid"] for e in of_one) == list(range(n_ranks)), of_one
    assert of_one[0]["ts"] == min(e["ts"] for e in of_one if e["ph"] == "s")
for key, of_one in groups.items():
    assert sorted(e["pid"] for e in of_one) == list(range(n_ranks)), (key, of_one)
    assert len({(e["args"]["kind"], e["args"]["bytes"], e["args"]["ranks"], e["name"]) for e in of_one}) == 1, of_one
    if of_one[0]["name"] in ("all-reduce", "barrier"):
        assert max(e["ts"] for e in of_one) <= min(e["ts"] + e["dur"] for e in of_one) + 0.001, (key, of_one)
for rank in range(n_ranks):
    of_rank = [e for e in whole if e["pid"] == rank]
    steps = [e for e in of_rank if e["name"].startswith("step ")]
    assert [e["args"]["number"] for e in steps] == list(range(steps[0]["args"]["number"], steps[0]["args"]["number"] + n_steps))
    assert {"forward", "backward", "update"} <= {e["args"]["section"] for e in of_rank if e["cat"] == "instruction"}
    # What lies in a lane lies in what is around it.
    for lane in {e["tid"] for e in of_rank}:
        around = []
        for e in sorted((e for e in of_rank if e["tid"] == lane), key=lambda e: (e["ts"], -e["dur"])):
            while around and around[-1] <= e["ts"]:
                around.pop()
            assert not around or e["ts"] + e["dur"] <= around[-1] + 0.001, (e, around)
            around.append(e["ts"] + e["dur"])
other = trace["otherData"]
assert other["ranks"] == n_ranks and other["lost_events"] == 0 and other["unmatched_collectives"] == 0, other
assert other["ranks_of_machine"] == n_ranks and other["machine"]["cores"] >= 1 and len(other["date"]) == 10, other
assert len(other["clocks"]) == n_ranks and other["clock_uncertainty_us"] >= 0, other
END
}

small=(train "${TINY[@]}" --layers 2 --batch 8 --steps 6 --eval-every 3 --eval-batches 1 --sample-tokens 4 --save-every 2)

# Every stage; the training itself is not changed by being watched.
ranks 4 "${small[@]}" --out unseen
for zero in 0 1 2 3; do
    ranks 4 "${small[@]}" --zero $zero --micro-batch $((zero ? 1 : 8)) --out stage-$zero --trace --json
    [[ $(tail -n 1 out | field trace) == stage-$zero/trace.json ]] || fail "where is it: $(tail -n 1 out)"
    grep -q 'trace: .* events, .* collectives, all on one clock: ' err || fail "not said: $(cat err)"
    check_trace stage-$zero/trace.json 4 6
done
for file in unseen/checkpoints/step-00000006/*; do
    [[ $file == */manifest* ]] || cmp "$file" "stage-0/${file#unseen/}" || fail "$file differs"
done
same_losses unseen stage-0

# Groups beside each other along an axis are told apart: nothing is lost of a mesh of two axes.
ranks 4 "${small[@]}" --tp 2 --pp 2 --micro-batch 4 --out mesh --trace
[[ $(sed -n 's/.*"unmatched_collectives":\([0-9]*\).*/\1/p' mesh/trace.json) == 0 ]] || fail "collectives were left out: $(cat err)"
pgpt lab timeline mesh/trace.json --out drawn
for group in 0,1 2,3; do
    grep -q "^tensor $group  *reduce-scatter " out || fail "no collectives of the ranks $group: $(cat out)"
done

# A few steps only (with nothing under way at their borders, which would be left out), and a file of one's own; of one process too.
ranks 3 "${small[@]}" --save-every 0 --out part --trace part.json --trace-steps 3:4
check_trace part.json 3 2
[[ ! -e part/trace.json ]] || fail "a second file"
pgpt "${small[@]}" --out alone --trace=alone.json --trace-steps 2:
(($(grep -c '"ph":"i"' alone.json) == 5)) || fail "steps of one process: $(grep '"ph":"i"' alone.json)"
pgpt lab timeline alone.json --json
[[ $(tail -n 1 out | field collectives) == 0 ]] || fail "collectives of one process: $(tail -n 1 out)"

# Stopped on the way: what was recorded is written.
ranks_apart 3 "${small[@]}" --steps 100000 --eval-every 0 --save-every 0 --out stopped --trace &
process=$!
until [[ -s stopped/metrics.jsonl ]] && (($(wc -l <stopped/metrics.jsonl) > 25)); do
    kill -0 $process 2>/dev/null || fail "ended on its own: $(cat "$SCRATCH"/err.*)"
    sleep 0.05
done
kill -TERM "$(<"$SCRATCH/pid.1")"
wait $process || fail "exit $? after SIGTERM: $(cat "$SCRATCH"/err.*)"
check_trace stopped/trace.json 3 20

# Mistakes: found before anything is made.
ranks_refused '/.*--trace-steps 70:80 has none of the steps of this call, which are 1 to 6/' 2 "${small[@]}" --out no --trace \
    --trace-steps 70:80
refused '/--trace: cannot write nowhere/t.json: the folder nowhere does not exist/' "${small[@]}" --out no --trace nowhere/t.json
for steps in 5:2 0:3 a:b : 1:2:3 -1:4 1.5 ' 1:2'; do
    refused '/--trace-steps/' "${small[@]}" --out no --trace --trace-steps="$steps"
done
refused '/--trace-steps means something only with --trace/' "${small[@]}" --out no --trace-steps 1:2
refused '/--trace: cannot write .*directory|--trace: .*folder/' "${small[@]}" --out no --trace .
[[ -z $(find . -name '*.tmp.*') ]] || fail "left behind: $(find . -name '*.tmp.*')"

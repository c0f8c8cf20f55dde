#!/bin/bash
# pgpt lab offload: times, bounds and memory of every choice, the largest models, what is drawn, and what is refused.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

SMALL=(--layers 4 --heads 2 --channels 64 --context 16 --batch 3 --threads 1 --steps 2 --warmup-steps 1)
mkdir disk
pgpt lab offload "${SMALL[@]}" --choices nothing,optimizer,optimizer+activations --folder disk --memory 64MiB,256MiB --json --out here
tail -n 1 out >line
[[ -z $(find disk -type f) ]] || fail "left behind: $(ls disk)"
fields() { grep -o "\"$1\":[0-9.e+-]*" line | cut -d: -f2; }
[[ $(grep -o '"offload":"[^"]*"' line | cut -d'"' -f4 | xargs) == 'nothing optimizer optimizer+activations' ]] || fail "choices: $(cat line)"
# A step reads and writes the state once, 8 bytes a parameter in pieces of whole pages; the bound is the most of what it is made of.
mapfile -t losses < <(fields loss)
[[ ${#losses[@]} == 3 && ${losses[0]} == "${losses[1]}" && ${losses[0]} == "${losses[2]}" ]] || fail "other bits: ${losses[*]}"
! command -v python3 >/dev/null || python3 - line <<'END' || fail "figures: $(cat line)"
import json, sys
plain, optimizer, both = json.load(open(sys.argv[1]))["choices"]
for choice in (plain, optimizer, both):
    step = choice["step"]
    assert step["bound_ms"] == max(step[name] for name in ("compute_ms", "bus_ms", "disk_ms", "host_ms")), step
    assert abs(step["stall_ms"] - max(0, step["step_ms"] - step["bound_ms"])) < 1e-6 * step["step_ms"], step
    assert step["compute_ms"] == plain["step"]["step_ms"]
    assert abs(sum(step["parts"].values()) - step["peak_bytes"]) <= 0.01 * step["peak_bytes"], step
assert plain["step"]["disk_ms"] == 0 and plain["step"]["file_bytes"] == 0
state = plain["step"]["parts"]["optimizer state"]
disk = optimizer["step"]["disk"]
assert disk["out_bytes"] == disk["in_bytes"] and state <= disk["in_bytes"] <= state + 16 * 4096, (state, disk)
assert abs(optimizer["step"]["disk_ms"] - 2e3 * disk["in_bytes"] / disk["both_per_s"]) < 1e-3 * optimizer["step"]["disk_ms"]
assert optimizer["step"]["parts"]["optimizer state"] == 0 and optimizer["step"]["file_bytes"] >= state
assert both["step"]["disk"]["in_bytes"] > disk["in_bytes"]
for choice in (plain, optimizer, both):
    small, large = choice["largest"]
    assert small["peak_bytes"] <= 64 << 20 and large["peak_bytes"] <= 256 << 20
    assert 0 < small["parameters"] < large["parameters"]
assert both["largest"][1]["parameters"] > plain["largest"][1]["parameters"]
END
for name in offload-step offload-memory offload-largest; do [[ -s here/$name.dat ]] || fail "no $name"; done
[[ $(grep -c '^# series' here/offload-largest.dat) == 3 ]] || fail "not a curve a choice: $(cat here/offload-largest.dat)"
"$SOURCE_ROOT/scripts/check-lab" here || fail "parts that are no whole: $(cat here/offload-memory.dat)"
grep -q 'optimizer+activations *[0-9]' out || fail "no table: $(cat out)"

# Only planned, for a GPU that is not here: the host's memory bounds it too.
pgpt lab offload "${SMALL[@]}" --device cuda:h200 --dtype bf16 --choices nothing,optimizer --memory 256MiB --host-memory 64MiB --json --out there
tail -n 1 out >line
[[ $(grep -o '"step":null' line | wc -l) == 2 && ! -e there/offload-step.dat ]] || fail "timed without a device: $(cat line)"
(($(fields pinned_bytes | sort -n | tail -n 1) <= 64 << 20)) || fail "more than the host has: $(cat line)"

# What cannot be here is left out of all, and said; asked for by name, it is refused.
pgpt lab offload "${SMALL[@]}" --choices all --folder disk --memory 64MiB --out all
grep -q 'optimizer+activations *[0-9]' out || fail "all: $(cat out err)"
refused '/moments.*optimizer, gradients, weights or activations/' lab offload --choices moments
refused '/names optimizer twice/' lab offload --choices optimizer+optimizer
refused '/has optimizer twice/' lab offload --choices optimizer,optimizer
refused '/auto is no choice/' lab offload --choices auto
refused '/--memory is wanted/' lab offload --device cuda:h200
refused '/--memory .16GB,/' lab offload --memory 16GB,1
refused '/--host-memory is one number/' lab offload --host-memory 1G,2G
refused '/cannot make a file in nowhere/' lab offload --folder nowhere # before anything is timed
refused '/did you mean cuda:h200/' lab offload --device cuda:h300

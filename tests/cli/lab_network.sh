#!/bin/bash
# pgpt lab network: a given step and a measured one, what it refuses, and what it leaves behind: nothing.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

number() { tail -n 1 out | grep -o "\"$1\":[^,}]*" | head -n 1 | cut -d: -f2; }

# A step of 100 ms and 4 MB of gradients on two hosts: 32 Mbit each way, so 320 Mbit/s are the border.
pgpt lab network --compute-ms 100 --parameters 1000000 --latency-us 0 --rates 100,1000 --measured '' --json --out given
tail -n 1 out | grep -q '"crossover_mbit":\[3[12][0-9]\.' || fail "the border is not at 320 Mbit/s: $(tail -n 1 out)"
awk "BEGIN { exit !($(number messages_ms) > 315 && $(number messages_ms) < 330) }" || fail "32 Mbit at 100 Mbit/s: $(number messages_ms) ms"
[[ $(number not_measured) == null && $(number buckets) == 8 ]] || fail "$(tail -n 1 out)"
[[ $(tail -n 1 out | grep -o '"blocking_efficiency"' | wc -l) == 16 ]] || fail "not 4 links and 4 latencies at 2 rates: $(tail -n 1 out)"
for name in step latency messages; do
    [[ -s given/network-$name.dat ]] || fail "no data of network-$name: $(ls given)"
    grep -q '^# note: .* core.*; 20[0-9][0-9]-[0-9-]*$' given/network-$name.dat || fail "no machine and date: $(head -n 4 given/network-$name.dat)"
done
grep -q 'messages take as long as computation at 3[12][0-9] Mbit/s a link' out || fail "not said: $(cat out)"
pgpt lab network --compute-ms 10 --parameters 1000 --latencies 100000 --rates 100 --links 1 --measured '' --out given
grep -q '^100000 .*at any bandwidth: latency alone does' out || fail "latency alone: $(cat out)"

# A step that is measured, and links that are, where that is permitted.
before=$(ip -brief link 2>/dev/null | wc -l)
pgpt lab network --quick --measured 200 --json --out measured -- --layers 1 --heads 2 --channels 16 --context 16 --batch 4
grep -q 'measured here on one core' out || fail "no step: $(cat out)"
awk "BEGIN { exit !($(number compute_ms) > 0 && $(number gradient_bytes) > 1000) }" || fail "$(tail -n 1 out)"
if [[ $(number not_measured) == null ]]; then
    tail -n 1 out | grep -q '"measured":\[{"rate_mbit":200.0,"found_rate_mbit":[0-9.]*,' || fail "nothing measured: $(tail -n 1 out)"
else
    grep -q 'not measured, only modelled: ' err || fail "does not say why nothing was measured: $(cat err)"
fi
[[ $(ip -brief link 2>/dev/null | wc -l) == "$before" ]] || fail "the network of the host has changed: $(ip link)"
[[ -z $(find measured -name '.runs-*') ]] || fail "left behind: $(ls -a measured)"

# Without the programs, or the right: modelled only, and said.
mkdir bin && ln -s "$(type -P bash)" bin/bash
if [[ ! -e /usr/sbin/ip ]]; then
    PATH=$PWD/bin pgpt lab network --compute-ms 1 --parameters 10 --out given
    grep -q 'not measured, only modelled: ip and tc are not installed' err || fail "$(cat err)"
fi

refused "/give the other too/" lab network --compute-ms 5
refused "/nothing to train behind/" lab network --compute-ms 5 --parameters 9 -- --model nano
refused "/--steps cannot be given/" lab network -- --steps 5
refused "/--rates 'x'/" lab network --rates x
refused "/--measured has more than 4/" lab network --measured 1,2,3,4,5

#!/bin/bash
# pgpt lab traffic: what is counted, the model of links, what is drawn, and what is refused. On namespaces where that is allowed, in
# the long tests.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

SMALL=(--layers 1 --heads 2 --channels 64 --context 16 --batch 4)
pgpt lab traffic --links model --latency-us 0 --ways 1bit-adam --ranks 2 --steps 10 --points 2 --rates 1,10 --json --out here -- "${SMALL[@]}"
tail -n 1 out >line
grep -q '^Links: by the model (--links model)' out || fail "does not say how: $(cat out)"
grep -q '"links":"model","ranks":2,"steps":10' line || fail "$(cat line)"
# Of f32 words of 64 numbers are 3; two steps are exact; the link's time goes by the bytes.
fields() { grep -o "\"$1\":[0-9.e+-]*" line | cut -d: -f2; }
mapfile -t bytes < <(grep -o '"messages":[0-9.]*,"all_bytes":[0-9.]*' line | sed 's/.*://')
awk "BEGIN { r = ${bytes[0]} / ${bytes[1]}; exit !(r > 20 && r < 21.5) }" || fail "bytes: ${bytes[*]}"
[[ $(fields compressed_steps) == $'0\n8' ]] || fail "exact steps: $(cat line)"
mapfile -t steps < <(fields step_ms) # none at 1 and 10 Mbit/s, signs likewise
mapfile -t one < <(grep -o '"compress":"[^"]*","bytes":[0-9.]*' line | sed 's/.*://')
for i in 0 1; do
    awk "BEGIN { d = ${steps[2 * i]} - ${steps[2 * i + 1]}; w = 8e-6 * ${one[i]} * (1 - 0.1) * 1e3; exit !(d > 0.999 * w && d < 1.001 * w) }" ||
        fail "the model's links: ${steps[*]} ms of ${one[*]} bytes"
done
for name in traffic-bytes traffic-time-1 traffic-time-10; do
    [[ $(grep -c '^# series' here/$name.dat) == 2 ]] || fail "$name: $(head here/$name.dat)"
done
grep -q 'links modelled' here/traffic-step.dat || fail "the picture does not say how: $(head here/traffic-step.dat)"
[[ -z $(find here -mindepth 1 -type d) ]] || fail "runs are left behind: $(ls -a here)"

refused '/--compress zip is none of the ways/' lab traffic --ways zip
refused '/--ways has int8 twice/' lab traffic --ways int8,int8
refused '/--rates has more than 4/' lab traffic --rates 1,2,3,4,5
refused '/--compress cannot be given/' lab traffic -- --compress int8
refused '/--links namespaces has hosts and a launcher of its own/' lab traffic --links namespaces --launcher mpirun
refused '/--latency-us is of --links model/' lab traffic --links namespaces --latency-us 20
refused '/--ways has an empty place/' lab traffic --ways int8,
ranks_refused "/'lab traffic' starts its own ranks/" 2 lab traffic

if is_long && ((EUID == 0)) && unshare --net true 2>/dev/null && [[ $(ldd "$PGPT") == *libmpi.so* ]]; then
    pgpt lab traffic --links namespaces --ways 1bit-adam --ranks 2 --steps 6 --points 1 --timed-steps 8 --rates 5,100 --json --out there \
        -- "${SMALL[@]}"
    tail -n 1 out >line
    grep -q '"links":"namespaces"' line || fail "not measured: $(cat err)"
    # Slower cables make slower steps, and carry what was counted and a few percent of headers, and what launchers say.
    mapfile -t steps < <(fields step_ms)
    awk "BEGIN { exit !(${steps[0]} > 1.5 * ${steps[1]} && ${steps[0]} > 1.5 * ${steps[2]}) }" || fail "steps: ${steps[*]}"
    grep -o '"all_bytes":[0-9.e+]*,"wire_bytes":[0-9.e+]*' line | tr -c '0-9.\n' ' ' |
        awk '{ r = $2 / $1; if (r < 0.95 || r > 1.2) bad = 1 } END { exit bad || NR != 2 }' || fail "on the wire: $(cat line)"
fi

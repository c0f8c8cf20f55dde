#!/bin/bash
# pgpt lab pipeline: schedules as letters, as a table, as pictures and as data; what it says to what cannot be; and that a traced
# pipeline is drawn as its prediction is.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

# Every schedule. Bubbles of four stages and 16 micro-batches, where forward and both gradients take as long.
pgpt lab pipeline --quick --out all --json
line=$(tail -n 1 out)
check_json <<<"$line"
of() { # SCHEDULE KEY
    sed 's/.*"schedules":\[//; s/\].*//; s/},{/}\n{/g' <<<"$line" | grep "\"schedule\":\"$1\"" | field "$2"
}
while read -r name bubble held versions messages; do
    [[ $(of "$name" bubble_ms) == "$bubble" && $(of "$name" formula_ms) == "$bubble" ]] || fail "$name: $line"
    [[ $(of "$name" held) == "$held" && $(of "$name" versions) == "$versions" ]] || fail "$name: $line"
    [[ $(of "$name" messages) == "$messages" ]] || fail "$name: $line"
    for ending in svg dat; do [[ -s all/pipeline-$name.$ending ]] || fail "no pipeline-$name.$ending"; done
    grep -qF '</svg>' "all/pipeline-$name.svg" || fail "pipeline-$name.svg has no end"
    grep -q "^$name: " out || fail "no timeline of $name"
done <<'END'
naive 144.0 1.0 1 96
gpipe 9.0 16.0 1 96
1f1b 9.0 4.0 1 96
interleaved 4.5 5.5 1 224
zb-h1 3.0 4.0 1 96
zb-h2 0.0 7.0 1 96
zb-v 0.0 4.0 1 192
pipedream 0.0 4.0 4 96
pipedream-2bw 0.0 4.0 2 96
END
grep -q '^1f1b  *1  *57  *9  *15.8 %  (p-1)(F+B+W)  *9  *4  *1  *96$' out || fail "the table: $(cat out)"
grep -q '^stage 0    FFFF......BBFBBF' out || fail "1f1b: $(cat out)"
grep -q '^stage 3    ...FBFBFBFBWFBWFBW.*FBWWWW$' out || fail "zb-h1: $(cat out)"
grep -q '^stage 0    FFFFFFFfbwfbwfbwfbwFBWfbwFBW' out || fail "zb-v: $(cat out)"
grep -q 'pgpt: pictures: all/pipeline-NAME.svg' err || fail "not said where they are: $(cat err)"
if command -v rsvg-convert >/dev/null || command -v gnuplot >/dev/null; then
    [[ $(head -c 4 all/pipeline-1f1b.png | tail -c 3) == PNG ]] || fail "no PNG"
else
    grep -q 'no PNG: neither gnuplot nor rsvg-convert is installed' err || fail "$(cat err)"
fi

# Every action in the data, and in the picture: 4 stages, 2 micro-batches.
pgpt lab pipeline --quick --micro-batches 2 --schedule 1f1b --out few
cat >wanted <<'END'
0 "forward" 0 0 0 0 0 1
0 "forward" 1 0 1 0 1 2
0 "backward" 0 0 0 0 10 12
0 "backward" 1 0 1 0 13 15
0 "update" -1 0 0 0 15 15
END
grep '^0 ' few/pipeline-1f1b.dat | diff - wanted || fail "the data of stage 0"
for part in '>F0<' '>F1<' '>B0<' '>B1<' '>stage 3<' 'beginning of the step (ms)' '4 stages, 2 micro-batches; bubble 60.0 %' \
    'pgpt lab pipeline --quick --micro-batches 2 --schedule 1f1b'; do
    grep -qF "$part" few/pipeline-1f1b.svg || fail "the picture lacks $part"
done
[[ $(grep -c '>B1<' few/pipeline-1f1b.svg) == 4 ]] || fail "not once a stage"
if command -v python3 >/dev/null && python3 -c '' 2>/dev/null; then
    python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' all/pipeline-zb-v.svg || fail "not XML"
fi

# A trace with the same actions is drawn likewise: labels, chunks, the third colour.
{
    printf '['
    for i in 0 1 2; do
        name=forward section=forward
        ((i == 1)) && name=backward section=backward
        ((i == 2)) && name='weight gradient' section='weight gradient'
        printf '{"ph":"X","name":"%s","cat":"step","pid":0,"tid":0,"ts":%d,"dur":10,"args":{"number":%d,"chunk":1}},' \
            "$name" $((10 * i)) $((i + 3))
        printf '{"ph":"X","name":"linear","cat":"instruction","pid":0,"tid":0,"ts":%d,"dur":10,"args":{"section":"%s"}}' \
            $((10 * i)) "$section"
        ((i == 2)) || printf ','
    done
    printf ']'
} >trace.json
pgpt lab timeline trace.json --out drawn
for part in '>F3<' '>B4<' '>W5<' '>weight gradient<' '>chunk 1<' '#4490ba' 'beginning of the trace'; do
    grep -qF "$part" drawn/timeline.svg || fail "the trace's picture lacks $part"
done
if grep -qF '>linear<' drawn/timeline.svg; then fail "two labels on one another"; fi

# Given times, and messages that take some. By the formulas 3 (10 + 12 - 6) and 3 (10 + 12 + 6).
pgpt lab pipeline --schedule 1f1b,zb-h1 --forward-ms 10 --backward-ms 12 --weight-ms 6 --out given --json
line=$(tail -n 1 out)
[[ $(of 1f1b bubble_ms) == 84.0 && $(of zb-h1 bubble_ms) == 48.0 ]] || fail "$line"
pgpt lab pipeline --schedule 1f1b --forward-ms 10 --backward-ms 12 --weight-ms 6 --message-ms 2 --out given --json
line=$(tail -n 1 out)
awk -v bubble="$(of 1f1b bubble_ms)" 'BEGIN { exit !(bubble > 84.0 + 6 * 2 - 0.001) }' || fail "messages take no time: $line"

# Measured.
pgpt lab pipeline --pp 2 --micro-batches 4 --schedule zb-v,gpipe --out measured --json
line=$(tail -n 1 out)
for key in forward_ms backward_ms weight_ms update_ms; do
    awk -v ms="$(field $key <<<"$line")" 'BEGIN { exit !(ms > 0 && ms < 1e4) }' || fail "$key: $line"
done
grep -q 'measured on this machine' out || fail "$(cat out)"

# More chunks; what has no such shape is left out where all are asked for, and refused where it is named.
pgpt lab pipeline --quick --chunks 3 --micro-batches 3 --out left --json
line=$(tail -n 1 out)
[[ $(of interleaved chunks) == 3 && $(of zb-v chunks) == 2 && -z $(of pipedream-2bw chunks) ]] || fail "$line"
grep -q 'pipedream-2bw is left out: .*at least 4, not 3' err || fail "$(cat err)"
refused '/at least 4, not 3.*--pp 3/' lab pipeline --quick --micro-batches 3 --schedule pipedream-2bw
refused '/--chunks 2, not 3/' lab pipeline --quick --chunks 3 --schedule zb-v
refused '/one chunk a stage/' lab pipeline --quick --chunks 2 --schedule 1f1b
refused '/needs --chunks 2 or more/' lab pipeline --quick --chunks 1 --schedule interleaved
refused "/did you mean 'zb-h1'/" lab pipeline --quick --schedule zb-h7
refused "/there is no 'x'/" lab pipeline --quick --schedule 1f1b,x
refused '/1f1b twice/' lab pipeline --quick --schedule 1f1b,1f1b
refused '/--schedule all stands by itself/' lab pipeline --quick --schedule 1f1b,all
refused "/there is no ''/" lab pipeline --quick --schedule ,
refused '/go together/' lab pipeline --forward-ms 2
refused '/go together, each above 0/' lab pipeline --forward-ms 0 --backward-ms 0 --weight-ms 0
refused '/leave it out where times are given/' lab pipeline --quick --forward-ms 1 --backward-ms 1 --weight-ms 1
refused '/--pp/' lab pipeline --pp 0
refused '/--pp/' lab pipeline --pp 65
refused '/--micro-batches/' lab pipeline --micro-batches 513
touch file
refused '/file/' lab pipeline --quick --out file

# The largest, and the smallest.
pgpt lab pipeline --quick --pp 64 --micro-batches 128 --chunks 4 --schedule interleaved --out large
pgpt lab pipeline --quick --pp 1 --micro-batches 1 --out small --json
line=$(tail -n 1 out)
[[ $(of 1f1b bubble_ms) == 0.0 && $(of zb-v bubble_ms) == 0.0 && $(of naive bubble_ms) == 0.0 ]] || fail "$line"

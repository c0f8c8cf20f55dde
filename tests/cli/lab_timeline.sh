#!/bin/bash
# pgpt lab timeline: what it says of a trace made by hand, that its picture is XML with all that belongs into one, and that no
# file, whatever is in it, does worse than a message.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

# Two ranks. Rank 0 computes 0-6 ms, waits 6-10 ms for an all-reduce that is under way from 4 to 10; rank 1 computes 0-8 and is in it
# from 8 to 10. So rank 0 has 6 ms of communication, 2 of them hidden, and rank 1 comes last.
cat >two.json <<'END'
{"displayTimeUnit":"ms","otherData":{"ranks":2,"clock_uncertainty_us":1.5},"traceEvents":[
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0 (<here> & \"there\")"}},
{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"worker of data"}},
{"ph":"X","name":"step 1","cat":"step","pid":0,"tid":0,"ts":5000.000,"dur":10000.000,"args":{"number":1}},
{"ph":"X","name":"linear","cat":"instruction","pid":0,"tid":0,"ts":5000,"dur":3000,"args":{"number":0,"section":"forward"}},
{"ph":"X","name":"linear","cat":"instruction","pid":0,"tid":0,"ts":8000,"dur":3000,"args":{"number":1,"section":"backward"}},
{"ph":"X","name":"wait","cat":"instruction","pid":0,"tid":0,"ts":11000,"dur":4000,"args":{"number":2,"section":"update"}},
{"ph":"X","name":"wait for","cat":"wait","pid":0,"tid":0,"ts":11000,"dur":4000,"args":{"communicator":"data","number":7}},
{"ph":"X","name":"all-reduce","cat":"collective","pid":0,"tid":1,"ts":9000,"dur":6000,"args":{"communicator":"data","number":7,"kind":"all-reduce","bytes":4096,"ranks":2}},
{"ph":"X","name":"linear","cat":"instruction","pid":1,"tid":0,"ts":5000,"dur":8000,"args":{"number":0,"section":"forward"}},
{"ph":"X","name":"all-reduce","cat":"collective","pid":1,"tid":0,"ts":13000,"dur":2000,"args":{"communicator":"data","number":7,"kind":"all-reduce","bytes":4096,"ranks":2}},
{"ph":"i","s":"g","name":"step 1","cat":"step","pid":0,"tid":0,"ts":5000},
{"ph":"C","name":"counter","pid":0,"ts":1,"args":{"x":[1,{"y":"}]"}]}}
]}
END
pgpt lab timeline two.json --out drawn --json
line=$(tail -n 1 out)
check_json <<<"$line"
[[ $(field ranks <<<"$line") == 2 && $(field collectives <<<"$line") == 1 && $(field to_ms <<<"$line") == 10.0 ]] || fail "$line"
of_rank() { # RANK KEY
    sed 's/.*"per_rank":\[//; s/\].*//; s/},{/}\n{/g' <<<"$line" | sed -n "$(($1 + 1))p" | field "$2"
}
[[ $(of_rank 0 compute_ms) == 6.0 && $(of_rank 0 comm_ms) == 6.0 && $(of_rank 0 comm_hidden_ms) == 2.0 ]] || fail "rank 0: $line"
[[ $(of_rank 0 comm_wait_ms) == 4.0 && $(of_rank 0 other_ms) == 0.0 && $(of_rank 0 came_last) == 0 ]] || fail "rank 0: $line"
[[ $(of_rank 1 compute_ms) == 8.0 && $(of_rank 1 comm_ms) == 2.0 && $(of_rank 1 comm_hidden_ms) == 0.0 ]] || fail "rank 1: $line"
[[ $(of_rank 1 came_last) == 1 ]] || fail "rank 1: $line"
grep -q '^data  *all-reduce  *1  *4.00 KiB .*rank 1 (1 of 1)' out || fail "the table: $(cat out)"
grep -q '^"data" "all-reduce" 7 4096 2 4.000000 4000.000 6000.000 2000.000 1$' drawn/timeline.dat || fail "$(cat drawn/timeline.dat)"
grep -q 'pgpt: picture: drawn/timeline.svg' err || fail "not said where it is: $(cat err)"
for part in '<svg ' '</svg>' 'What 2 ranks did' 'time since the beginning of the trace (ms)' 'pgpt lab timeline two.json' \
    '&lt;here&gt; &amp; ' 'worker of data' '>waiting<' '>collective<' '>step 1<' '>wait for 7<' '>2 ranks; 2' 'class="l3"'; do
    grep -qF "$part" drawn/timeline.svg || fail "the picture lacks $part"
done
if command -v python3 >/dev/null && python3 -c '' 2>/dev/null; then
    python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' drawn/timeline.svg || fail "not XML"
fi

# The PNG beside it is gnuplot's; without gnuplot there is none, not even an old one, and a line says how to draw it.
[[ -s drawn/timeline.gp ]] || fail "no script"
! command -v gnuplot >/dev/null || [[ -s drawn/timeline.png ]] || fail "no PNG: $(cat err)"
mkdir empty
touch drawn/timeline.png
PATH=$PWD/empty pgpt lab timeline two.json --out drawn
[[ -s drawn/timeline.svg && ! -e drawn/timeline.png ]] || fail "a PNG without gnuplot"
grep -q '(cd drawn && gnuplot timeline.gp)' err || fail "does not say how to draw it: $(cat err)"

# Words that have no room: the margin grows with the names, a name that is longer still ends in dots, and "wait for 7" becomes "wait".
sed 's/rank 0 ([^)]*)/rank 0 (node-with-a-long-name.example.org)/; s/worker of data/a thread whose name would fill half of the picture/
    s/"ts":11000,"dur":4000/"ts":11000,"dur":400/' two.json >long.json
pgpt lab timeline long.json --out drawn
grep -qF '>rank 0 (node-with-a-long-name.example.org)<' drawn/timeline.svg || fail "a name was cut: $(grep rank drawn/timeline.svg)"
grep -qF '>a thread whose name would fill half of the …<' drawn/timeline.svg || fail "no dots: $(grep thread drawn/timeline.svg)"
grep -qF '>wait<' drawn/timeline.svg || fail "half a sentence: $(grep wait drawn/timeline.svg)"
! grep -qF '>wait for<' drawn/timeline.svg || fail "half a sentence: $(grep wait drawn/timeline.svg)"

# Where and when: what the trace says, with the processor's name as short as below other pictures; without it (traces that are
# older, or another program's) what --note says. What is no machine is left out.
machine='"machine":{"processor":"Maker(R) Zippy(TM) CPU @ 2.80GHz","cores":1,"gpu":"A <GPU>"},"ranks_of_machine":2,"date":"2020-02-29",'
sed "s/{\"ranks\":2,/{$machine\"ranks\":2,/" two.json >placed.json
sed 's/,"gpu":"A <GPU>"//' placed.json >shared.json
pgpt lab timeline placed.json --out drawn --json
grep -qF '>Maker Zippy @ 2.80GHz, 1 core, A &lt;GPU&gt;; 2 ranks; 2020-02-29<' drawn/timeline.svg || fail "$(grep 2020 drawn/timeline.svg)"
grep -qF '>pgpt lab timeline placed.json' drawn/timeline.svg || fail "no command in a line of its own"
[[ $(tail -n 1 out) == *'"machine":"Maker Zippy @ 2.80GHz, 1 core, A <GPU>","date":"2020-02-29"'* ]] || fail "$(tail -n 1 out)"
pgpt lab timeline shared.json --out drawn --note 'A quiet night'
grep -qF '>A quiet night. Maker Zippy @ 2.80GHz, 1 core; 2 ranks, more than there are cores; 2020-02-29<' drawn/timeline.svg ||
    fail "$(grep quiet drawn/timeline.svg)"
grep -qF '# note: A quiet night. Maker Zippy' drawn/timeline.dat || fail "$(head -n 3 drawn/timeline.dat)"
touch -d 2021-03-04T12:00Z two.json
pgpt lab timeline two.json --out drawn --note 'A machine, 3 cores'
grep -qF '>A machine, 3 cores. 2 ranks; 2021-03-04<' drawn/timeline.svg || fail "$(grep machine drawn/timeline.svg)"
for other in '"machine":7' '"machine":{"processor":7,"cores":"two"}' '"machine":{"cores":-1}' '"machine":{"cores":99999999999}' \
    '"machine":[],"date":{}'; do
    sed "s/{\"ranks\":2,/{$other,\"ranks\":2,/" two.json >odd.json
    pgpt lab timeline odd.json --out drawn --json
    [[ $(tail -n 1 out) == *'"machine":null,"date":null'* ]] || fail "$other: $(tail -n 1 out)"
done

# A part of it: 2 to 5 ms.
pgpt lab timeline two.json --out drawn --from 2 --to 5 --json
line=$(tail -n 1 out)
[[ $(of_rank 0 compute_ms) == 3.0 && $(of_rank 0 comm_ms) == 1.0 && $(of_rank 0 comm_hidden_ms) == 1.0 ]] || fail "a part: $line"
[[ $(field incomplete_collectives <<<"$line") == 0 ]] || fail "of a collective, a part is shown: $line"

# A bare list, as other programs write it; events that overlap without lying in each other.
printf '[{"ph":"X","name":"a","pid":3,"tid":9,"ts":0,"dur":5},{"ph":"X","name":"b","pid":3,"tid":9,"ts":4,"dur":5}]' >list.json
pgpt lab timeline list.json --out drawn --json
[[ $(tail -n 1 out | field clipped_events) == 1 ]] || fail "$(tail -n 1 out)"
grep -q 'warning: 1 of the events overlap' err || fail "$(cat err)"

# Traces that are none. Nothing is written, one line says why.
bad() { # PATTERN BYTES
    printf '%b' "$2" >"$SCRATCH/bad.json"
    depth=2 refused "/$1/" lab timeline "$SCRATCH/bad.json" --out bad
}
x='{"ph":"X","name":"a","cat":"step","pid":0,"tid":0,"ts":1,"dur":2}'
bad 'neither an object nor a list' ''
bad 'neither an object nor a list' 'hello'
bad 'neither an object nor a list' '\\x1f\\x8b\\x08'
bad 'has no "traceEvents"' '{}'
bad 'has no "traceEvents"' '{"a":1}'
bad 'not a list' '{"traceEvents":{}}'
bad 'no events with a duration' '{"traceEvents":[]}'
bad 'list of objects' '{"traceEvents":[1]}'
bad '"ph" is not' '{"traceEvents":[{}]}'
bad '"pid" is not' "[${x/\"pid\":0/\"pid\":\"x\"}]"
bad '"pid" is not' "[${x/\"pid\":0/\"pid\":-1}]"
bad '"tid" is not' "[${x/\"tid\":0/\"tid\":99999999999}]"
bad '"ts" is not' "[${x/\"ts\":1/\"ts\":null}]"
bad '"ts" is not' "[${x/\"ts\":1/\"ts\":1e300}]"
bad '"dur" is not' "[${x/\"dur\":2/\"dur\":-2}]"
bad '"dur" is not' "[${x/,\"dur\":2/}]"
bad '"name" is not' "[${x/\"a\"/7}]"
bad 'byte' "[${x/\"ts\":1/\"ts\":1e999}]"
bad 'byte' "[${x/\"ts\":1/\"ts\":99999999999999999999999}]"
bad 'take no time' "[${x/\"dur\":2/\"dur\":0}]"
bad 'no end' "[$x"
bad 'no end' "[$x $x]"
bad 'something follows' "[$x]]"
bad 'second list' "{\"traceEvents\":[$x],\"traceEvents\":[$x]}"
bad 'byte .*no end' '{"traceEvents":[{"ph":"X'
bad 'byte .*no end' '{"traceEvents":[{"ph":"X"'
bad 'byte' '{"traceEvents":[{"ph":"X\\xff"}]}'
bad 'byte' '{"traceEvents":[{"ph":"X\\u0000"}]}'
bad 'byte' '{"traceEvents":[{"ph":"X","ph":"X"}]}'
{ printf '['; head -c 900000 /dev/zero | tr '\0' '['; } >"$SCRATCH/deep.json"
refused '/byte/' lab timeline "$SCRATCH/deep.json" --out bad
{ printf '{"traceEvents":[{"ph":"'; head -c 3000000 /dev/zero | tr '\0' 'x'; printf '"}]}'; } >"$SCRATCH/long.json"
refused '/longer than 1 MiB/' lab timeline "$SCRATCH/long.json" --out bad
{ printf '['; for i in {1..1100}; do printf '{"ph":"X","name":"a","pid":%d,"tid":0,"ts":1,"dur":2},' "$i"; done; printf '%s]' "$x"; } \
    >"$SCRATCH/wide.json"
refused '/more than 1024 threads/' lab timeline "$SCRATCH/wide.json" --out bad
refused '/cannot|no such/' lab timeline nowhere.json
refused '/FILE/' lab timeline
refused '/--from 9 is not before --to 3/' lab timeline two.json --from 9 --to 3
refused '/the trace ends at 10 ms/' lab timeline two.json --from 10
refused '/--to/' lab timeline two.json --to -1

# Times of the largest size, far apart, and a window that no number can divide: a picture all the same.
printf '[{"ph":"X","name":"a","pid":0,"ts":-1e15,"dur":1},{"ph":"X","name":"b","cat":"step","pid":1,"ts":1e15,"dur":1e-3}]' >far.json
pgpt lab timeline far.json --out drawn
pgpt lab timeline far.json --out drawn --from 999999999999 --to 999999999999.001

# A trace with a byte changed here and there: a picture or a message, never anything else.
if command -v python3 >/dev/null && python3 -c '' 2>/dev/null; then
    python3 - <<'END'
import random
original = open("two.json", "rb").read()
for seed in range(30):
    random.seed(seed)
    changed = bytearray(original)
    for _ in range(random.choice((1, 3, 20))):
        changed[random.randrange(len(changed))] = random.choice((random.randrange(256), *b'{}[]",:0-9e.'))
    open(f"changed-{seed}.json", "wb").write(changed[: random.choice((len(changed), random.randrange(len(changed))))])
END
    for file in changed-*.json; do
        code=0
        "$PGPT" lab timeline "$file" --out drawn >out 2>err </dev/null || code=$?
        ((code == 0 || code == 2)) || fail "exit $code from $file: $(cat err)"
    done
fi

# A folder that is a file.
touch file
refused '/file/' lab timeline two.json --out file

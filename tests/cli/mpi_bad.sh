#!/bin/bash
# Mistakes that several ranks make, or one of them alone: one message from one rank, exit 2, nobody hangs, and nothing
# is left behind.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib_mpi"

mkdir a b
for i in {1..400}; do echo "the $((i * i % 13)) of $((i % 7)) is $((i % 11))"; done >book.txt
cp book.txt a/book.txt
sed '200s/of/or/' book.txt >b/book.txt
small=(train "${TINY[@]}" --data book.txt --out run)
no() {
    local pattern=$1 n=$2
    shift 2
    depth=2 at_once ranks_refused "$pattern" "$n" "${small[@]}" "$@"
}

# Said of everybody: no rank is named.
no '/--batch 3 has fewer sequences than the 4 ranks that share it; raise --batch to 4, or start 3 ranks \(mpirun -n\)$/' 4 --batch 3
no '/--batch 1 has fewer sequences than the 2 ranks that share it; raise --batch to 2, or start 2 ranks \(mpirun -n\) with --dp 1$/' 4 \
    --batch 1 --tp 2 --dp 2
no '/--batch 1 has fewer sequences than the 2 ranks that share it; raise --batch to 2$/' 2 --batch 1 --experts 2 --ep 2
no '/--cp 2 is more than sequences of 2 tokens .*; lower it to 1, or take a model with a larger --context/' 2 --cp 2 --context 2
no '/--dp 3 does not multiply to the 4 ranks of this run; leave out --dp/' 4 --dp 3
no '/--dp 1 does not multiply to the 2 ranks of this run/' 2 --dp 1
no "/--zero wants a whole number between 0 and 3, got '4'/" 2 --zero 4
no '/--ep 2 divides the experts of a model among ranks, and this one has none \(--experts 0\); leave it out, and --dp takes these ranks/' 2 --ep 2
no '/--cp 4 is more than sequences of 5 tokens can be divided into \(ring: at least two a rank\); lower it to 2, or raise --sequence/' 4 --cp 4 --sequence 5
no '/--cp-style all-to-all gives each of the 3 ranks of --cp some of the 2 key\/value heads, which are too few; choose --cp-style ring, or lower --cp to 1/' 3 --cp 3 --cp-style all-to-all --heads 2
no '/--cp-style means something only with --cp 2 or more; leave it out/' 2 --cp-style all-to-all
no '/--sync local is of whole sequences, and --cp 2 divides each among ranks; leave one out/' 4 --cp 2 --sync local
no '/--eager-update is for one process/' 2 --cp 2 --eager-update --clip 0
no '/--tp 3 does not divide the 4 ranks of this run; start 3 or 6 ranks \(mpirun -n\), or choose --tp 2 or --tp 4/' 4 --tp 3
no '/--sequence-parallel means something only with --tp 2 or more; leave it out/' 2 --no-sequence-parallel
no '/--tp-style means something only with --tp 2 or more; leave it out/' 2 --tp-style row
no '/--tp-style row has all rows on every rank, and --sequence-parallel divides them; leave one out/' 2 --tp 2 --tp-style row --sequence-parallel
no '/--tp-chunks means something only with --tp or --ep 2 or more; leave it out/' 2 --tp-chunks 2
no '/--tp-chunks 2 overlaps the messages of --tp-style column; leave one out/' 2 --tp 2 --tp-chunks 2 --tp-style row
no '/--tp-chunks 2 is of layers that one stage has all of, and in a pipeline micro-batches are in flight already/' 4 --tp 2 --pp 2 --layers 2 --tp-chunks 2
no '/--ranks-per-host means something only with --print-mesh or --compress-across hosts; leave it out, or give that too/' 2 --ranks-per-host 2
no '/--sync local is of whole models, and --tp 2 divides each among ranks; leave one out/' 4 --tp 2 --sync local
no '/--eager-update is for one process/' 2 --tp 2 --eager-update --clip 0
no '/--tp-chunks 5 makes more parts of a micro-batch than the 4 sequences that it has on a rank; lower it/' 2 --tp 2 --batch 8 --micro-batch 4 --tp-chunks 5
no "/--pp 4 makes more stages than the model's 3 blocks; choose --pp 2, or --layers 4/" 4 --pp 4 --layers 3
no "/--pp 2 makes more stages than the model's 1 blocks; choose --pp 1, or --layers 2/" 2 --pp 2
no "/--allreduce .*'star'/" 2 --allreduce star
no '/--eager-update is for one process; leave it out/' 2 --eager-update --clip 0
no "/cannot find 'none.txt': No such file/" 3 --data none.txt
at_once ranks_refused "/--batch 1 has fewer sequences than there are ranks \(2\); raise it/" 2 verify --batch 1
at_once ranks_refused "/pgpt convert runs in one process; start it without mpirun/" 2 convert run other
all_done

# A folder that holds a run already stays as it is.
pgpt "${small[@]}" --out taken
no '/.*taken already holds a run; choose another --out/' 2 --out taken
at_once ranks_refused '/.*none/' 2 train --resume none

# One rank sees something else than the others: it is named.
export VIEW
# shellcheck disable=SC2016 # the ranks find out
VIEW='if ((rank == 2)); then cd "$SCRATCH"; fi'
no "/rank 2 on [^ ]+: cannot find 'book.txt': No such file/" 3
# shellcheck disable=SC2016
VIEW='if ((rank == 1)); then cd b; else cd a; fi'
no '/rank 1 on [^ ]+ has text of --data = checksum [0-9a-f]{16} where rank 0 has .*; start every rank with the same/' 3 --tokenizer byte
no '/rank 1 on [^ ]+ has tokenizer = .* where rank 0 has tokenizer = /' 2
# shellcheck disable=SC2016
VIEW='if ((rank == 0)); then set -- "$@" --zero 9; fi'
no "/rank 0 on [^ ]+: --zero wants a whole number/" 2
VIEW='if ((rank == 1)); then set -- "$@" --out other; fi'
no '/rank 1 on [^ ]+ has --out = other where rank 0 has --out = run/' 2
all_done

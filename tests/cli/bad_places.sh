#!/bin/bash
# Where a run cannot go, and a disk that is full.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

no() {
    local pattern=$1
    shift
    depth=2 refused "$pattern" train "${TINY[@]}" "$@"
}

pgpt train "${TINY[@]}" --out run
sum=$(find run -type f -exec cksum {} + | sort)
no '/run already holds a run.*--out.*--resume run/' --out run
no '/run/' --out run/
[[ $(find run -type f -exec cksum {} + | sort) == "$sum" ]] || fail "the old run was touched"
echo "precious" >file
no '/file is a file/' --out file
no '/file is a file/' --out file/below
[[ $(cat file) == precious ]] || fail "the file was touched"
printf -v long '%0300d' 7
no '/too long/' --out "$long"
no '/too long/' --out "new/folders/$long"
[[ ! -e /proc/pgpt-test ]] && no '/proc/' --out /proc/pgpt-test

# A folder that is there and holds no run may be used.
mkdir ready
pgpt train "${TINY[@]}" --out ready

((EUID == 0)) || skip "a full disk and a read-only one: only root can mount them"
# In a mount namespace of our own, so that nothing is left mounted whatever happens.
unshare -m true 2>/dev/null || skip "a full disk and a read-only one: no mounts are allowed here"
if [[ ${1:-} != mounted ]]; then
    rm -r ./*
    rm -rf "$SCRATCH"
    exec unshare -m bash "$0" mounted
fi
rm -r ./*
mkdir disk
mount -t tmpfs -o size=200k tmpfs disk || skip "a full disk and a read-only one: no mounts are allowed here"
mount -t tmpfs -o size=4k tmpfs disk && dd if=/dev/zero of=disk/filler bs=4k count=1 status=none
trap 'umount disk disk 2>/dev/null || true; rm -rf "$SCRATCH"' EXIT

# No room for anything, or not for a checkpoint: known before the run folder is made.
no '/free/' --out disk/run
umount disk
no '/checkpoint.*iB are free/' --out disk/run --channels 64
dd if=/dev/zero of=disk/filler bs=4k count=49 status=none
no '/free/' --out disk/run
rm disk/filler

# It fills up on the way, first with checkpoints, then with metrics: the message comes, what is complete stays, half of
# something does not.
for every in 50 0; do
    code=0
    "$PGPT" train "${TINY[@]}" --out disk/run --steps 10000 --save-every $every --keep 10 >out 2>err </dev/null || code=$?
    ((code == 2)) || fail "exit $code on a full disk: $(cat err)"
    grep -Eq '^pgpt: .*(disk|room|takes|needs).*free' err || fail "does not say that the disk is full: $(cat err)"
    [[ -z $(find disk -name '*.tmp*') ]] || fail "left behind: $(find disk)"
    [[ -z $(tail -c 1 disk/run/metrics.jsonl) ]] || fail "half a line of metrics"
    (($(wc -l <disk/run/metrics.jsonl) > 100)) || fail "the disk was full too early: $(cat err)"
    ((every == 0)) || pgpt generate disk/run --tokens 3
    rm -r disk/run
done

mount -o remount,ro disk
no '/read-only/' --out disk/run

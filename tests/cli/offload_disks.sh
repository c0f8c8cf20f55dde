#!/bin/bash
# --offload to disks that are bad: read-only, without room, full on the way, slow; and a folder that vanishes. Each is
# refused with a message before anything is made, or the run ends with advice, and nothing that was saved is lost.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

options=("${TINY[@]}" --layers 2 --channels 64 --steps 12 --save-every 3 --keep 9 --lr 0.01)

same_files() { # RUN RUN
    local file
    for file in model.safetensors optimizer.safetensors; do
        cmp "$1/checkpoints/step-00000012/$file" "$2/checkpoints/step-00000012/$file" || fail "$file of $1 and $2 differs"
    done
}

if [[ ${1:-} != mounted ]]; then
    # A folder that vanishes on the way: the file in it stays as long as the run.
    mkdir gone
    pgpt train "${options[@]}" --out plain
    "$PGPT" train "${options[@]}" --out away --offload optimizer:file=gone >out 2>err </dev/null &
    process=$!
    for ((i = 0; i < 200; i++)); do
        ! rmdir gone 2>/dev/null || break
        sleep 0.01
    done
    wait $process || grep -q '^pgpt: --offload: .*gone' err || fail "ends without a word: $(cat err)"
    [[ ! -d away ]] || [[ ! -e away/checkpoints/step-00000012 ]] || same_files plain away
    # And when it goes on: said before anything is done.
    rm -rf away/checkpoints/step-00000012 gone
    [[ ! -d away/checkpoints ]] || refused '/gone/' train --resume away
    refused '/file/' train "${options[@]}" --out x --offload optimizer:file=err

    # A folder of somebody else, a file that may not be so large, and a host without the memory: nothing is made.
    mkdir own
    (
        ulimit -f 64
        refused '/own takes no file of .*ulimit -f/' train "${options[@]}" --out x --offload optimizer:file=own
    )
    if [[ $(uname -m) == x86_64 && -z ${ASAN_OPTIONS:-} ]]; then
        code=0
        (ulimit -v 200000 && exec "$PGPT" train "${options[@]}" --channels 1024 --out x --offload optimizer:file=own) >out 2>err </dev/null || code=$?
        ((code == 1 || code == 2)) || fail "exit $code without memory: $(cat err)"
        grep -Eq "^pgpt: .*(ulimit -v|are free|no thread|no memory)" err || fail "no word of memory: $(cat err)"
        [[ -z $(find own -type f) && ! -e x/checkpoints ]] || fail "made without memory: $(find own x)"
        rm -rf x
    fi
    if ((EUID == 0)) && command -v setpriv >/dev/null && [[ -x $PGPT ]] && setpriv --reuid 65534 --clear-groups test -x "$PGPT"; then
        setpriv --reuid 65534 --clear-groups "$PGPT" train "${options[@]}" --out /dev/shm/pgpt-test-nobody --offload optimizer:file="$PWD/own" \
            >out 2>err </dev/null && fail "writes into a folder of somebody else"
        grep -q '^pgpt: --offload: cannot make a file in .*no permission' err || fail "not said: $(cat err)"
        [[ ! -e /dev/shm/pgpt-test-nobody ]] || fail "made a run all the same"
    fi

    ((EUID == 0)) || skip "bad disks: only root can mount them"
    unshare -m true 2>/dev/null || skip "bad disks: no mounts are allowed here"
    rm -r ./*
    rm -rf "$SCRATCH"
    exec unshare -m bash "$0" mounted
fi

rm -rf ./*
mkdir small disk
mount -t tmpfs -o size=8m tmpfs small || skip "bad disks: no mounts are allowed here"
trap 'umount disk small 2>/dev/null || true; rm -rf "$SCRATCH"' EXIT
pgpt train "${options[@]}" --out plain

# Read-only; no room.
mkdir small/in
mount -o remount,ro small
refused '/small.*read-only/' train "${options[@]}" --out x --offload optimizer:file=small/in
mount -o remount,rw small
refused '/small.*iB free.*takes/' train "${options[@]}" --channels 512 --out x --offload weights:file=small/in,gradients:file=small/in
refused '/iB free.*takes/' train "${options[@]}" --channels 512 --out x --offload optimizer:file=small/in

# No direct I/O: said, and the same bits.
mkdir -p /dev/shm/pgpt-test-offload && pgpt train "${options[@]}" --out cached --offload optimizer:file=/dev/shm/pgpt-test-offload
same_files plain cached
rm -r cached
pgpt train "${options[@]}" --out cached --offload weights:file=/dev/shm/pgpt-test-offload,gradients:file=/dev/shm/pgpt-test-offload
rmdir /dev/shm/pgpt-test-offload
same_files plain cached

# A disk that promises more than it has (thin provisioning): an image with holes, in less memory.
fails() { # PATTERN WORDS...
    local pattern=$1 code=0
    shift
    "$PGPT" train "$@" >out 2>err </dev/null || code=$?
    ((code == 2 || code == 1)) || fail "exit $code on a disk that is full: $(cat err)"
    grep -Eq "$pattern" err || fail "does not say so: $(cat err)"
}
truncate -s 64M small/image
mkfs.ext4 -q small/image || skip "a disk that fills up on the way: no mkfs.ext4 here"
mount -o loop small/image disk || skip "a disk that fills up on the way: no loop device here"
dd if=/dev/zero of=small/filler bs=64k count=120 status=none 2>/dev/null || true
for io in auto threads; do
    # In the first steps; and when a run goes on.
    rm -rf run new
    fails 'cannot write to a file in disk: .*checkpoints are whole.*--resume' "${options[@]}" --out new \
        --offload optimizer:file=disk --offload-io $io
    fails 'cannot write to a file in disk: .*another disk' "${options[@]}" --out newer \
        --offload weights:file=disk,gradients:file=disk,optimizer:file=disk --offload-io $io
    rm -rf newer
    cp -r plain run
    rm -r run/checkpoints/step-00000009 run/checkpoints/step-00000012
    fails 'cannot write to a file in disk: .*another disk' --resume run --offload optimizer:file=disk --offload-io $io
    [[ -e run/checkpoints/step-00000006 ]] || fail "a checkpoint is gone"
    pgpt train --resume run --offload optimizer:file=.
    same_files plain run
done

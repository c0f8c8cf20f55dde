#!/bin/bash
# The scripts of bench/ take their launcher with options, as a shell would read it, ask for nothing twice, and say what to set
# where it does not start anything.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
type -P python3 >/dev/null || skip "there is no python3"
printf '#!/bin/bash\necho "mpirun (Open MPI) 4.1"\n' >mpirun && chmod +x mpirun
words() {
    MPIRUN=$1 python3 -B -c 'import sys
sys.path.insert(0, sys.argv[1])
import launcher
print("|".join(launcher.find_launcher("./pgpt", sys.exit)))' "$SOURCE_ROOT/bench" 2>&1
}
root=
((EUID)) || root="|--allow-run-as-root"
[[ $(words "./mpirun") == "./mpirun|--oversubscribe$root" ]] || fail "$(words ./mpirun)"
[[ $(words "./mpirun --allow-run-as-root --mca x 'a b'") == "./mpirun|--allow-run-as-root|--mca|x|a b|--oversubscribe" ]] ||
    fail "$(words "./mpirun --allow-run-as-root --mca x 'a b'")"
[[ $(words "./mpirun 'x") == *"No closing quotation"* ]] || fail "$(words "./mpirun 'x")"
[[ $(words "./none --x") == *"cannot run ./none"* ]] || fail "$(words "./none --x")"

# A launcher that starts nothing: what it said, and what to set, rather than a traceback.
printf '#!/bin/bash\necho "mpirun has detected an attempt to run as root" >&2; exit 1\n' >broken && chmod +x broken
for script in plan scaling; do
    code=0
    MPIRUN=$PWD/broken python3 -B "$SOURCE_ROOT/bench/$script" --only memory >out 2>err || code=$?
    ((code == 2)) || fail "$script: exit $code with $(cat out err)"
    grep -q "^$script: '.*/broken' does not start processes (exit 1); name .*MPIRUN" err || fail "$script: $(cat err)"
    grep -q 'attempt to run as root' err || fail "$script: $(cat err)"
    ! grep -q Traceback err || fail "$script: $(cat err)"
done

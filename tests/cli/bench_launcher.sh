#!/bin/bash
# bench/scaling takes its launcher with options, as a shell would read it, and asks for nothing twice.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"
type -P python3 >/dev/null || skip "there is no python3"
printf '#!/bin/bash\necho "mpirun (Open MPI) 4.1"\n' >mpirun && chmod +x mpirun
words() {
    MPIRUN=$1 python3 -c 'import importlib.machinery, importlib.util, sys
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("scaling", sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_loader("scaling", loader))
loader.exec_module(module)
print("|".join(module.find_launcher("./pgpt")))' "$SOURCE_ROOT/bench/scaling" 2>&1
}
root=
((EUID)) || root="|--allow-run-as-root"
[[ $(words "./mpirun") == "./mpirun|--oversubscribe$root" ]] || fail "$(words ./mpirun)"
[[ $(words "./mpirun --allow-run-as-root --mca x 'a b'") == "./mpirun|--allow-run-as-root|--mca|x|a b|--oversubscribe" ]] ||
    fail "$(words "./mpirun --allow-run-as-root --mca x 'a b'")"
[[ $(words "./mpirun 'x") == *"No closing quotation"* ]] || fail "$(words "./mpirun 'x")"
[[ $(words "./none --x") == *"cannot run ./none"* ]] || fail "$(words "./none --x")"

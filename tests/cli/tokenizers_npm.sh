#!/bin/bash
# Token ids against two implementations that npm has (tests/external/tokenizers/compare.mjs says how). They are fetched
# into the test's own folder and leave nothing behind.
# shellcheck source=/dev/null
. "$SOURCE_ROOT/tests/cli/lib"

for tool in node npm; do
    command -v $tool >/dev/null || skip "$tool is not installed"
done
mkdir packages
timeout 120 npm install --no-save --no-audit --no-fund --prefix packages js-tiktoken@1 gpt-3-encoder@1 >npm.log 2>&1 ||
    skip "npm cannot fetch js-tiktoken and gpt-3-encoder: $(tail -n 1 npm.log)"

mkdir work
cd work || exit
node "$SOURCE_ROOT/tests/external/tokenizers/compare.mjs" "$PGPT" "$(realpath ../packages)" "$SOURCE_ROOT"

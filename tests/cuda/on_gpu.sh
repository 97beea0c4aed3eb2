#!/usr/bin/env bash
# Everything that only a GPU can say about a build, from an installed wheel, in the order of what fails first:
# the test suite, compute-sanitizer over every kernel, and the benchmark with its record.
#   tests/cuda/on_gpu.sh OUT     (on one H200 with 16 cores about ten minutes; logs and the record go to OUT)
set -uo pipefail
cd "$(dirname "$0")/../.."
out=${1:?"usage: $0 OUT"}
mkdir -p "$out"
failed=0

# Four processes: the tests wait for their references on the CPU, not for the GPU; each with its share of the cores, as
# tests/ops takes 500 s instead of 130 where all processes have threads on all cores. The emulator needs no GPU machine.
for group in ops torch "interop python tools" cuda; do
    paths=$(for part in $group; do [ -d "tests/$part" ] && echo "tests/$part"; done)
    # shellcheck disable=SC2086
    OMP_NUM_THREADS=$(($(nproc) / 4)) timeout 400 python3 -m pytest -q $paths >"$out/suite-${group%% *}.txt" 2>&1 &
done
wait
for log in "$out"/suite-*.txt; do
    grep -E '^(FAILED|ERROR)' "$log" | head -n 20
    echo "$log: $(tail -n 1 "$log")"
    tail -n 1 "$log" | grep -qE ' passed' && ! tail -n 1 "$log" | grep -qE 'failed|error' || failed=1
done
counts=$(for log in "$out"/suite-*.txt; do tail -n 1 "$log"; echo; done | awk '
    { for (i = 2; i <= NF; i++) if ($i ~ /^passed/) p += $(i - 1); else if ($i ~ /^skipped/) s += $(i - 1); else if ($i ~ /^failed/) f += $(i - 1) }
    END { printf "%d passed, %d failed, %d skipped", p, f, s }')
echo "$counts"

# racecheck once found copies that were started and never committed, while every value test passed. A sanitizer whose
# process has died says "0 errors" as well: a group counts once its calls were counted. torch's own kernels are left out,
# without which racecheck took ten times as long and so much memory that processes died; except of initcheck, to which
# what they do not write would be uninitialised. Two kinds of kernels take a second pass:
# - blocks of softmax_grid.cu look for messages of others in memory that nobody may have written yet; for initcheck it
#   is filled first (--written);
# - synccheck says "Missing wait" of blocks 8 to 15 of a cluster as soon as several such clusters run, even of a program
#   that only initialises a barrier, arrives at it and waits for it, and never in clusters of eight. Rows that lie in more
#   than eight blocks are left out.
check() { # TOOL GROUPS OPTIONS-OF-THE-TOOL OPTIONS OF kernel_cases.py
    python3 tests/cuda/kernel_cases.py --groups | grep -E "$2" | while IFS= read -r group; do
        printf '%s;%s;%s;%s\n' "$1" "$group" "$3" "$4"
    done
}
floats="softmax torch.(b?float16|float32|float64)"
{
    check memcheck . --kernel-name-exclude=kns=native ""
    check initcheck . --kernel-name-exclude=kns=softmax_grid ""
    check initcheck "$floats" "" "--written --named=grid|140001"
    check racecheck . --kernel-name-exclude=kns=native ""
    check synccheck . --kernel-name-exclude=kns=native,kns=softmax_cluster,kns=softmax_smem ""
    check synccheck "^$floats" --kernel-name=kns=softmax_cluster,kns=softmax_smem "--named=(cluster|smem).[148]$"
} | xargs -P 12 -d '\n' -n 1 bash -c '
    IFS=";" read -r tool group filter options <<<"$1"
    name=$tool-${options//[^a-z]}-$group name=${name// /-} log="$0/${name////-of-}.txt"
    timeout 900 compute-sanitizer --tool "$tool" $filter python3 tests/cuda/kernel_cases.py $options "$group" >"$log" 2>&1
    calls=$(grep " calls$" "$log" || echo "did not end") summary=$(grep "SUMMARY: " "$log")
    echo "$tool $filter $options [$group]: $calls, $summary"
    [ "$calls" != "did not end" ] && [[ "$summary" == *"SUMMARY: 0 "* ]]' "$out" || failed=1

python3 -m tilewise.bench all --peers torch --record "$out" --tests "$counts" >"$out/bench.txt" 2>&1 || failed=1
exit $failed

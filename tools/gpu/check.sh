#!/usr/bin/env bash
# Everything about the CUDA back-end that only a GPU can show. One command for a person with a card:
#
#   cmake -S . -B build/cuda -G Ninja -DPIVOT_CUDA=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo
#   cmake --build build/cuda --target parity_report cuda_ops_parity_test cuda_step_graph_test cuda_draw_gpu_test \
#     cuda_block_scaled_gpu_test needle_test pivot
#   tools/gpu/check.sh build/cuda [RESULT.json]
#
# Runs the golden runs, the op parity grid against the oracle, replayed against eager steps, draws against the host's sampler,
# the embedded model, and compute-sanitizer (memcheck and racecheck) on small cases. On an sm_120 device also what only it has:
# its block-scaled instructions against the model that the host tests simulate, the products built on them, and the goldens
# once more without them. Prints one line a check; the JSON lists all of them with
# their last lines of output. Exit code 0: every check passed or was not possible here (and says why).
# PIVOT_TEST_DATA names the folder with the goldens. PIVOT_CHECK_LIMIT: seconds a check may take (600).
set -u
build=${1:?usage: tools/gpu/check.sh BUILD_DIR [RESULT.json]}
result=${2:-/dev/null}
limit=${PIVOT_CHECK_LIMIT:-600}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
: >"$work/checks"

program() {  # the path of a built program, wherever the generator put it
  find "$build" -type f -name "$1" -perm -u+x 2>/dev/null | head -1
}

# check NAME COMMAND... : runs, judges by the exit code, keeps the output.
check() {
  local name=$1 start=$SECONDS status=passed code
  shift
  timeout "$limit" "$@" >"$work/$name.log" 2>&1
  code=$?
  [ $code -eq 0 ] || { status=failed; failed=1; }
  printf '%-28s %-8s %4d s\n' "$name" "$status" $((SECONDS - start))
  [ $code -eq 0 ] || { grep -F '[  FAILED  ]' "$work/$name.log" | sort -u; tail -12 "$work/$name.log"; } | sed 's/^/    /'
  printf '%s\t%s\t%d\t%d\t%s\n' "$name" "$status" "$code" $((SECONDS - start)) "$*" >>"$work/checks"
}
skip() {
  printf '%-28s skipped: %s\n' "$1" "$2"
  printf '%s\tskipped\t0\t0\t%s\n' "$1" "$2" >>"$work/checks"
}
# with PROGRAM NAME COMMAND... : the check, if the program was built.
with() {
  local found
  found=$(program "$1")
  if [ -z "$found" ]; then skip "$2" "$1 is not built in $build"; return; fi
  local name=$2
  shift 2
  check "$name" "${@//@/$found}"
}

sanitizer() {  # sanitizer TOOL NAME PROGRAM ARGUMENTS...
  local tool=$1 name=$2 found
  found=$(program "$3")
  if ! command -v compute-sanitizer >/dev/null; then skip "$name" "compute-sanitizer is not installed"; return; fi
  if [ -z "$found" ]; then skip "$name" "$3 is not built in $build"; return; fi
  shift 3
  check "$name" compute-sanitizer --tool "$tool" --error-exitcode 9 "$found" "$@"
}

with parity_report goldens @ --backend cuda --json
with cuda_ops_parity_test ops_grid @ --gtest_brief=1
with cuda_step_graph_test step_graphs @ --gtest_brief=1
with cuda_draw_gpu_test draws @ --gtest_brief=1
with needle_test embedded_model env PIVOT_TEST_BACKENDS=cuda @ --gtest_brief=1
with pivot server_answers "$(dirname "$0")/serve_check.py" @
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1)
case $capability in
  12.*)
    with cuda_block_scaled_gpu_test block_scaled @
    with parity_report goldens_decode_kernels env PIVOT_CUDA_OFF=block_scaled @ --backend cuda
    sanitizer memcheck memcheck_block_scaled cuda_block_scaled_gpu_test --gtest_brief=1
    sanitizer racecheck racecheck_block_scaled cuda_block_scaled_gpu_test --gtest_brief=1
    ;;
  *) skip block_scaled "the first GPU has compute capability ${capability:-none}, not 12.0" ;;
esac
sanitizer memcheck memcheck_draws cuda_draw_gpu_test --gtest_brief=1 "--gtest_filter=*Faults*"
sanitizer memcheck memcheck_golden parity_report --backend cuda bf16_w128/n129
sanitizer memcheck memcheck_ops cuda_ops_parity_test --gtest_brief=1 "--gtest_filter=*HcPost*:*HcHead*:*Query*:*Logits*:*TiesAndNan*"
sanitizer racecheck racecheck_golden parity_report --backend cuda bf16_w32/n005
sanitizer racecheck racecheck_ops cuda_ops_parity_test --gtest_brief=1 "--gtest_filter=*HcPost*:*HcHead*:*Logits*:*TiesAndNan*"

python3 - "$work" "$result" <<'PYTHON'
import json, pathlib, subprocess, sys

work, result = pathlib.Path(sys.argv[1]), sys.argv[2]


def said(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


checks = []
for line in (work / "checks").read_text().splitlines():
    name, status, code, seconds, command = line.split("\t", 4)
    log = work / f"{name}.log"
    entry = {"check": name, "status": status, "seconds": int(seconds), "command": command.rsplit("/", 1)[-1]}
    if log.exists():
        text = log.read_text(errors="replace")
        if name == "goldens" and status == "passed":
            entry["cases"] = json.loads(text)
        else:
            entry["output"] = text.splitlines()[-8:]
    checks.append(entry)
gpu = said("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
report = {"gpu": gpu, "commit": said("git", "rev-parse", "--short=12", "HEAD"), "checks": checks}
pathlib.Path(result).write_text(json.dumps(report, indent=1) + "\n") if result != "/dev/null" else None
PYTHON
exit $failed

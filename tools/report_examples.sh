#!/usr/bin/env bash
# Makes docs/migration-example.md and the screenshots of docs/images anew: report_examples.sh [PIVOT]
# Needs the test data (PIVOT_TEST_DATA, default ../shared) and, for the pictures, Debian's chromium.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pivot=$(realpath "${1:-build/release/bin/pivot}")
readonly docs=$PWD/docs
data=$(realpath "${PIVOT_TEST_DATA:-../shared}")
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT
readonly data pages pivot
readonly width=1100

# The height of a page at that width: asked of the browser, because a screenshot has the size of its window.
height_of() {
  cat >"$pages/ruler.html" <<HTML
<iframe id="page" src="$1" style="width:${width}px;height:100px;border:0"></iframe>
<script>onload = () => { document.title = "height " + page.contentDocument.documentElement.scrollHeight; };</script>
HTML
  browser --allow-file-access-from-files --virtual-time-budget=2000 --dump-dom "file://$pages/ruler.html" |
    sed -n 's/.*<title>height \([0-9]*\)<.*/\1/p'
}

browser() { chromium --headless --no-sandbox --disable-gpu --hide-scrollbars "$@" 2>/dev/null; }

screenshot() {
  local name=$1 height
  height=$(height_of "$name.html")
  browser --window-size="$width,$height" --screenshot="$docs/images/$name.png" "file://$pages/$name.html"
}

# Relative paths, so that the reports name files and not this machine.
cd "$data/real"
nvfp4=(headers/nvidia-DeepSeek-V4-Flash-NVFP4.headers.DERIVED.json.gz
  --config configs/nvidia-DeepSeek-V4-Flash-NVFP4/config.json)
release=(headers/DeepSeek-V4-Flash-0731.headers.json.gz)
release_config=configs/DeepSeek-V4-Flash-0731/config.json
machine=(--gpus 8xRTX-PRO-6000 --numa 2)
migrate=(plan "${nvfp4[@]}" --to "${release[@]}" --to-config "$release_config" "${machine[@]}")

migration=$("$pivot" "${migrate[@]}" --html "$pages/migration.html")
"$pivot" plan "${release[@]}" --config "$release_config" "${machine[@]}" --html "$pages/plan.html" >/dev/null
"$pivot" inspect "${release[@]}" --config "$release_config" --html "$pages/inspect.html" >/dev/null
cd ../goldens
"$pivot" diff native nvfp4 --html "$pages/diff.html" >/dev/null || [[ $? == 1 ]]  # they differ

mkdir -p "$docs/images"
cat >"$docs/migration-example.md" <<MARKDOWN
# Example: from NVIDIA's NVFP4 checkpoint to 0731 on eight RTX PRO 6000

Made by \`tools/report_examples.sh\` from published headers and configs; no weights were read. The page that \`--html\` writes is
[below](#as-a-page). A first look at [a plan](images/plan.png), [an inspection](images/inspect.png), [a comparison](images/diff.png).

    pivot ${migrate[*]}

\`\`\`text
$migration
\`\`\`

## As a page

![The same report as an HTML page](images/migration.png)
MARKDOWN

if ! command -v chromium >/dev/null; then
  echo "report_examples.sh: no chromium (apt-get install chromium): the pictures stay as they were" >&2
  exit 0
fi
for page in migration plan inspect diff; do screenshot "$page"; done

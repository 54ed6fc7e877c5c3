#!/bin/sh
# parity_test.sh SOURCE_DIR ENCODE_LINES: pivot's tokenizer against the `tokenizers` package; 77 (skipped) where the data
# or the package is not there. PIVOT_TEST_PYTHON names the Python that has the package.
set -eu
data=${PIVOT_TEST_DATA:-$1/../shared}
if [ ! -e "$data/real/tokenizer/v4/tokenizer.json" ]; then
  echo "NEEDS DATA: real/tokenizer/v4/tokenizer.json is not there. Set PIVOT_TEST_DATA to the folder that holds it." >&2
  exit 77
fi
exec "${PIVOT_TEST_PYTHON:-python3}" "$1/tools/tokenizer_parity.py" "$2" "$data/real/tokenizer/v4/tokenizer.json" \
  --texts "$data"/real/haystack/*.txt --random 100000

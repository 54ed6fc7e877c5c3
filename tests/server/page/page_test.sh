#!/usr/bin/env bash
# page_test.py with the Python that has its packages.
exec "${PIVOT_TEST_PYTHON:-python3}" -B "$(dirname "$0")/page_test.py" "$@"

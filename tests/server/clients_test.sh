#!/bin/sh
# clients_test.sh TESTS_DIR SCRIPT ARGS...: a Python test with the Python that has the packages (PIVOT_TEST_PYTHON); the
# script itself says what is missing and exits with 77.
set -eu
dir=$1
shift
exec "${PIVOT_TEST_PYTHON:-python3}" "$dir/$1" "$2" ${3+"$3"} ${4+"$4"} ${5+"$5"} ${6+"$6"}

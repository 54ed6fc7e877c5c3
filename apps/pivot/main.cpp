// pivot: thin entry point; one file per sub-command.
#include <cstdio>

#include "pivot_version.h"

int main() {
  std::printf("pivot %s (%s)\n", pivot::kVersion, pivot::kCommit);
  return 0;
}

// Where threads and memory go on a machine of several NUMA nodes. The decisions are pure functions of a
// description of the machine; apply_to_this_thread() alone touches the system.
//
// On one node nothing is done: the kernel's own placement is right, and a pinned thread could not step aside
// for other work. On several, threads are spread over the nodes by their cores, since bandwidth is what the
// work needs, neighbouring pieces share a node, every thread keeps to one core, and memory is interleaved
// over the nodes that have threads: weights are read by all threads alike.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pivot::simd {

// Cores that the process may use, ascending, by node; nodes without any are left out.
struct Machine {
  struct Node {
    int id = 0;
    std::vector<int> cpus;
  };
  std::vector<Node> nodes;
};

struct Placement {
  std::vector<int> cpu_of_piece;  // empty: threads are not pinned
  std::vector<int> memory_nodes;  // interleaved over these; empty: left to the system
};

// "0-3,8,10-11" as the kernel writes it; an empty list is one. Errors: kInvalidData.
Result<std::vector<int>> parse_cpu_list(std::string_view text);
// From a folder laid out like /sys/devices/system/node, and the usable cores. A folder that cannot be read,
// or that names none of them, makes one node of all.
Machine describe_machine(const std::filesystem::path& nodes_folder, const std::vector<int>& usable);
// REQUIRES: at least one node, num_threads >= 1. More threads than cores share cores in turn.
Placement place_threads(const Machine& machine, int num_threads);

// The cores of this process's affinity mask.
std::vector<int> usable_cpus();
// Pins the calling thread and sets its memory policy; does nothing for an empty placement. Errors:
// kUnsupported where the system refuses, with its reason.
Result<> apply_to_this_thread(const Placement& placement, int piece);

}  // namespace pivot::simd

// The machine under a benchmark: what it is, what it can do at best, and what else it is doing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pivot {
class ThreadPool;
}

namespace pivot::cli {

struct MachineFacts {
  std::string cpu;  // "AMD EPYC"
  int usable_cores = 0;
  std::int64_t memory_bytes = 0;
  double load = 0;  // of the last minute
};
MachineFacts machine_facts();

// Memory that this process can have without driving others out: the kernel's estimate, and what is left of a
// control group's limit where there is one.
std::int64_t available_memory_bytes();
// The part of the above that text files of /proc and /sys/fs/cgroup say. `limit`, `used`: contents of
// memory.max and memory.current; empty: none. 0 where `meminfo` has no estimate.
std::int64_t available_memory_bytes(std::string_view meminfo, std::string_view limit, std::string_view used);
// kOutOfMemory with both numbers where `needed` and a reserve for everything else do not fit; `advice` ends
// the sentence.
Result<> check_memory(std::int64_t needed, std::int64_t available, std::string_view what,
                      std::string_view advice);

// ---- floors: what no operator can beat ----

struct Peak {
  std::string_view instruction;  // "fp32 fma", "int8 dot", "bf16 dot"
  double one_thread = 0;         // operations per second; multiply and add count two
  double all_threads = 0;
};

struct Floors {
  std::int64_t buffer_bytes = 0;
  double read_one_thread = 0;  // bytes per second
  double read_all_threads = 0;
  std::vector<Peak> peaks;  // "fp32 fma" first

  // Of all threads. The first one where there is none of that name.
  double peak(std::string_view instruction) const;
};
// Reads a buffer of this size from memory with the widest loads of the instruction set ("avx2", "avx512...";
// anything else: 16 bytes), and runs its multiply-add instructions on registers. The best of several runs
// each: a floor is what the machine can do. Errors: kOutOfMemory.
Result<Floors> measure_floors(ThreadPool& pool, std::string_view isa, std::int64_t buffer_bytes);

}  // namespace pivot::cli

// The hardware catalogue (data/hardware.json, compiled in) and the machine a plan is for.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pivot {

// One number with where it comes from.
struct Figure {
  double value = 0;
  std::string basis;   // measured, published, derived, assumption
  std::string source;  // one line
};

struct Gpu {
  std::string id;  // "RTX-PRO-6000"
  std::vector<std::string> aliases;
  std::string name;
  std::string arch;      // "sm_120"
  std::string link;      // the link that boxes with this card usually have
  Figure memory_gib;     // usable by one process
  Figure bandwidth_gbs;  // attainable
  Figure bandwidth_spec_gbs;
  Figure fp8_tflops;
  Figure fp4_tflops;
  Figure bf16_tflops;

  double memory_bytes() const { return memory_gib.value * 1024.0 * 1024.0 * 1024.0; }
};

struct Link {
  std::string id;
  std::string name;
  bool switched = false;                // every pair has full bandwidth, sockets do not matter
  Figure pair_gbs;                      // between two GPUs
  Figure ring_gbs;                      // collective bus bandwidth of four or more
  Figure cross_ring_gbs;                // the same across sockets
  std::map<int, Figure> all_reduce_us;  // small messages, by GPUs of one NUMA node
  Figure cross_all_reduce_us;
  Figure host_gbs;  // pinned host memory to one GPU
};

struct HardwareCatalogue {
  std::vector<Gpu> gpus;
  std::vector<Link> links;
};

// The compiled-in catalogue. Fails only if that text is broken (a test parses it).
Result<HardwareCatalogue> parse_hardware(std::string_view json);
std::string_view embedded_hardware_json();

struct Machine {
  Gpu gpu;
  int num_gpus = 1;
  Link link;
  int numa_nodes = 1;
  std::string origin;  // "asked for" or how it was found

  // GPUs of a group of `group` are on one NUMA node; larger groups cross sockets.
  bool crosses_sockets(int group) const;
  double all_reduce_seconds(int group) const;  // small messages
  double collective_bytes_per_second(int group) const;
};

// "8xRTX-PRO-6000", "H200", "2xh200". Errors list the known names.
Result<Machine> parse_machine(std::string_view gpus, std::string_view link, int numa_nodes,
                              const HardwareCatalogue& catalogue);
// The GPUs that the NVIDIA driver of this machine reports under `proc` (/proc/driver/nvidia). kNotFound where
// there are none.
Result<Machine> detect_machine(const HardwareCatalogue& catalogue,
                               std::string_view proc = "/proc/driver/nvidia",
                               std::string_view sys_nodes = "/sys/devices/system/node");

}  // namespace pivot

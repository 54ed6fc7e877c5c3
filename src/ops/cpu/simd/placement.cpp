#include "ops/cpu/simd/placement.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/file.h"

namespace pivot::simd {
namespace {

constexpr int kMostCpus = 1 << 16;  // more than Linux supports

Result<int> number(std::string_view text) {
  int value = -1;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size() || value < 0 || value >= kMostCpus)
    return fail(ErrorCode::kInvalidData, "\"{}\" is no core number", text);
  return value;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  return text;
}

}  // namespace

Result<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  text = trimmed(text);
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    const std::size_t dash = part.find('-');
    PIVOT_TRY(const int first, number(part.substr(0, dash)));
    int last = first;
    if (dash != std::string_view::npos) {
      PIVOT_TRY(last, number(part.substr(dash + 1)));
    }
    if (last < first) return fail(ErrorCode::kInvalidData, "\"{}\" is no range of cores", part);
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

Machine describe_machine(const std::filesystem::path& nodes_folder, const std::vector<int>& usable) {
  Machine machine;
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry(nodes_folder, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with("node")) continue;
    const Result<int> id = number(std::string_view(name).substr(4));
    if (!id) continue;
    const Result<std::string> text = read_file(entry->path() / "cpulist");
    if (!text) continue;
    const Result<std::vector<int>> cpus = parse_cpu_list(*text);
    if (!cpus) continue;
    Machine::Node node{*id, {}};
    std::set_intersection(cpus->begin(), cpus->end(), usable.begin(), usable.end(),
                          std::back_inserter(node.cpus));
    if (!node.cpus.empty()) machine.nodes.push_back(std::move(node));
  }
  std::sort(machine.nodes.begin(), machine.nodes.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  if (machine.nodes.empty()) machine.nodes.push_back({0, usable});
  return machine;
}

Placement place_threads(const Machine& machine, int num_threads) {
  PIVOT_CHECK(!machine.nodes.empty() && num_threads >= 1, "{} nodes, {} threads", machine.nodes.size(),
              num_threads);
  Placement placement;
  if (machine.nodes.size() == 1) return placement;
  std::size_t cores = 0;
  for (const Machine::Node& node : machine.nodes) cores += node.cpus.size();
  // Node n gets the threads whose share of all cores falls into its own: contiguous pieces, sizes in
  // proportion.
  std::size_t before = 0;
  int first = 0;
  for (const Machine::Node& node : machine.nodes) {
    before += node.cpus.size();
    const int end = static_cast<int>((static_cast<std::size_t>(num_threads) * before + cores / 2) / cores);
    for (int piece = first; piece < end; ++piece)
      placement.cpu_of_piece.push_back(node.cpus[static_cast<std::size_t>(piece - first) % node.cpus.size()]);
    if (end > first) placement.memory_nodes.push_back(node.id);
    first = end;
  }
  return placement;
}

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

Result<> apply_to_this_thread(const Placement& placement, int piece) {
  if (placement.cpu_of_piece.empty()) return {};
  const int cpu = placement.cpu_of_piece[static_cast<std::size_t>(piece)];
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof(set), &set) != 0)
    return fail(ErrorCode::kUnsupported, "thread {} cannot be bound to core {}: {}", piece, cpu,
                std::strerror(errno));
  constexpr std::size_t kWords = 16, kBits = 8 * sizeof(unsigned long);
  unsigned long nodes[kWords] = {};
  for (const int node : placement.memory_nodes)
    if (static_cast<std::size_t>(node) < kWords * kBits)
      nodes[static_cast<std::size_t>(node) / kBits] |= 1ul << (static_cast<std::size_t>(node) % kBits);
  if (::syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, nodes, kWords * kBits) != 0)
    return fail(ErrorCode::kUnsupported, "memory cannot be interleaved over {} nodes: {}",
                placement.memory_nodes.size(), std::strerror(errno));
  return {};
}

}  // namespace pivot::simd

#include "bench/machine.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/report/units.h"
#include "base/threads.h"

namespace pivot::cli {
namespace {

// Beside the model: activations, caches, threads' stacks, and whatever else runs.
constexpr std::int64_t kReserveBytes = std::int64_t{1} << 30;

std::string contents(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The number after `name` in lines of "name: number ..."; 0 where there is none.
std::int64_t number_after(std::string_view text, std::string_view name) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) return 0;
  std::string_view rest = text.substr(at + name.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t:"), rest.size()));
  std::int64_t value = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), value);
  return value;
}

std::string value_after(std::string_view text, std::string_view name) {
  const std::size_t at = text.find(name);
  if (at == std::string_view::npos) return "";
  const std::size_t colon = text.find(':', at), end = text.find('\n', at);
  if (colon == std::string_view::npos || colon > end) return "";
  const std::string_view value = text.substr(colon + 1, end - colon - 1);
  const std::size_t first = value.find_first_not_of(' ');
  return first == std::string_view::npos ? "" : std::string(value.substr(first));
}

}  // namespace

MachineFacts machine_facts() {
  MachineFacts facts;
  facts.cpu = value_after(contents("/proc/cpuinfo"), "model name");
  facts.usable_cores = usable_cores();
  facts.memory_bytes =
      static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
  if (getloadavg(&facts.load, 1) != 1) facts.load = 0;
  return facts;
}

std::int64_t available_memory_bytes(std::string_view meminfo, std::string_view limit, std::string_view used) {
  std::int64_t bytes = number_after(meminfo, "MemAvailable") * 1024;
  const std::int64_t most = number_after(limit, ""), now = number_after(used, "");
  if (most > 0) bytes = std::min(bytes, std::max<std::int64_t>(most - now, 0));
  return bytes;
}

std::int64_t available_memory_bytes() {
  return available_memory_bytes(contents("/proc/meminfo"), contents("/sys/fs/cgroup/memory.max"),
                                contents("/sys/fs/cgroup/memory.current"));
}

Result<> check_memory(std::int64_t needed, std::int64_t available, std::string_view what,
                      std::string_view advice) {
  if (available == 0 || needed + kReserveBytes <= available) return {};
  const auto size = [](std::int64_t bytes) { return report::format_bytes(static_cast<double>(bytes)); };
  return fail(
      ErrorCode::kOutOfMemory,
      "{} needs {} ({} bytes) of memory and {} beside it; {} ({} bytes) are available, so nothing was "
      "allocated; {}",
      what, size(needed), needed, size(kReserveBytes), size(available), available, advice);
}

double Floors::peak(std::string_view instruction) const {
  for (const Peak& p : peaks)
    if (p.instruction == instruction) return p.all_threads;
  return peaks.empty() ? 0.0 : peaks.front().all_threads;
}

}  // namespace pivot::cli

#include "server/metrics/process_figures.h"

#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace pivot {
namespace {

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

ProcessFigures process_figures() {
  ProcessFigures figures;
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0)
    figures.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  std::ifstream statm("/proc/self/statm");
  if (statm >> total_pages >> resident_pages) figures.resident_bytes = resident_pages * sysconf(_SC_PAGESIZE);
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc/self/fd", error);
  // The iterator holds one itself.
  for (int count = -1; !error; entry.increment(error)) {
    if (entry == std::filesystem::directory_iterator()) break;
    figures.open_files = ++count;
  }
  return figures;
}

double process_start_time_seconds() {
  // Field 22 of /proc/self/stat: ticks from boot. The second field, the name, may hold spaces and brackets.
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return now_seconds();
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double start_ticks = 0;
  timespec since_boot{};
  if (!(fields >> start_ticks) || clock_gettime(CLOCK_BOOTTIME, &since_boot) != 0) return now_seconds();
  const double age_seconds = static_cast<double>(since_boot.tv_sec) +
                             static_cast<double>(since_boot.tv_nsec) * 1e-9 -
                             start_ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
  return now_seconds() - age_seconds;
}

}  // namespace pivot

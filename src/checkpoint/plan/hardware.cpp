#include "checkpoint/plan/hardware.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace pivot {

namespace {

using nlohmann::json;

Figure figure_of(const json& entry) {
  return {entry.at("value").get<double>(), entry.at("basis").get<std::string>(),
          entry.at("source").get<std::string>()};
}

Gpu gpu_of(const json& entry) {
  Gpu gpu;
  gpu.id = entry.at("id").get<std::string>();
  gpu.aliases = entry.at("aliases").get<std::vector<std::string>>();
  gpu.name = entry.at("name").get<std::string>();
  gpu.arch = entry.at("arch").get<std::string>();
  gpu.link = entry.at("link").get<std::string>();
  gpu.memory_gib = figure_of(entry.at("memory_gib"));
  gpu.bandwidth_gbs = figure_of(entry.at("bandwidth_gbs"));
  gpu.bandwidth_spec_gbs = figure_of(entry.at("bandwidth_spec_gbs"));
  gpu.fp8_tflops = figure_of(entry.at("fp8_tflops"));
  gpu.fp4_tflops = figure_of(entry.at("fp4_tflops"));
  gpu.bf16_tflops = figure_of(entry.at("bf16_tflops"));
  return gpu;
}

Link link_of(const json& entry) {
  Link link;
  link.id = entry.at("id").get<std::string>();
  link.name = entry.at("name").get<std::string>();
  link.switched = entry.at("switched").get<bool>();
  link.pair_gbs = figure_of(entry.at("pair_gbs"));
  link.ring_gbs = figure_of(entry.at("ring_gbs"));
  link.cross_ring_gbs = figure_of(entry.at("cross_ring_gbs"));
  for (const auto& [gpus, figure] : entry.at("all_reduce_us").items())
    link.all_reduce_us[std::stoi(gpus)] = figure_of(figure);
  link.cross_all_reduce_us = figure_of(entry.at("cross_all_reduce_us"));
  link.host_gbs = figure_of(entry.at("host_gbs"));
  return link;
}

// Names compare by their letters and digits alone: "NVIDIA RTX PRO 6000", "rtx-pro-6000" and "RTX_PRO_6000"
// are one.
std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      out += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

const Gpu* find_gpu(const HardwareCatalogue& catalogue, std::string_view name) {
  const std::string wanted = folded(name);
  for (const Gpu& gpu : catalogue.gpus) {
    if (folded(gpu.id) == wanted) return &gpu;
    for (const std::string& alias : gpu.aliases)
      if (folded(alias) == wanted) return &gpu;
  }
  return nullptr;
}

// The longest catalogue name that a driver's model string contains ("NVIDIA RTX PRO 6000 Blackwell
// Workstation Edition").
const Gpu* find_gpu_in_model(const HardwareCatalogue& catalogue, std::string_view model) {
  const std::string text = folded(model);
  const Gpu* best = nullptr;
  std::size_t best_length = 0;
  for (const Gpu& gpu : catalogue.gpus) {
    const std::string id = folded(gpu.id);
    if (id.size() > best_length && text.find(id) != std::string::npos) {
      best = &gpu;
      best_length = id.size();
    }
  }
  return best;
}

Result<Link> find_link(const HardwareCatalogue& catalogue, std::string_view id) {
  std::vector<std::string> known;
  for (const Link& link : catalogue.links) {
    if (link.id == id) return link;
    known.push_back(link.id);
  }
  return fail(ErrorCode::kInvalidArgument, "no link called '{}'; known links: {}", id,
              fmt::join(known, ", "));
}

std::vector<std::string> gpu_names(const HardwareCatalogue& catalogue) {
  std::vector<std::string> names;
  for (const Gpu& gpu : catalogue.gpus) names.push_back(gpu.id);
  return names;
}

}  // namespace

Result<HardwareCatalogue> parse_hardware(std::string_view text) {
  try {
    const json document = json::parse(text);
    HardwareCatalogue catalogue;
    for (const json& entry : document.at("gpus")) catalogue.gpus.push_back(gpu_of(entry));
    for (const json& entry : document.at("links")) catalogue.links.push_back(link_of(entry));
    return catalogue;
  } catch (const std::exception& error) {
    return fail(ErrorCode::kInvalidData, "the hardware catalogue is malformed: {}", error.what());
  }
}

bool Machine::crosses_sockets(int group) const {
  const int per_node = std::max(1, (num_gpus + numa_nodes - 1) / numa_nodes);
  return group > per_node;
}

double Machine::all_reduce_seconds(int group) const {
  if (group <= 1) return 0;
  if (!link.switched && crosses_sockets(group)) return link.cross_all_reduce_us.value * 1e-6;
  // The figure of the next size that the catalogue has, the largest one beyond.
  const auto at = link.all_reduce_us.lower_bound(group);
  if (at != link.all_reduce_us.end()) return at->second.value * 1e-6;
  return link.all_reduce_us.empty() ? link.cross_all_reduce_us.value * 1e-6
                                    : link.all_reduce_us.rbegin()->second.value * 1e-6;
}

double Machine::collective_bytes_per_second(int group) const {
  if (group <= 2) return link.pair_gbs.value * 1e9;
  return (crosses_sockets(group) ? link.cross_ring_gbs.value : link.ring_gbs.value) * 1e9;
}

Result<Machine> parse_machine(std::string_view gpus, std::string_view link, int numa_nodes,
                              const HardwareCatalogue& catalogue) {
  Machine machine;
  machine.origin = "asked for";
  std::string_view name = gpus;
  int count = 1;
  const auto [at, error] = std::from_chars(gpus.data(), gpus.data() + gpus.size(), count);
  if (error == std::errc() && at != gpus.data() + gpus.size() && (*at == 'x' || *at == 'X')) {
    name = gpus.substr(static_cast<std::size_t>(at - gpus.data()) + 1);
  } else {
    count = 1;
  }
  constexpr int kMostGpus = 1024;
  if (count < 1 || count > kMostGpus)
    return fail(ErrorCode::kInvalidArgument, "--gpus {}: the number of GPUs must be 1 to {}", gpus,
                kMostGpus);
  const Gpu* gpu = find_gpu(catalogue, name);
  if (gpu == nullptr)
    return fail(ErrorCode::kInvalidArgument,
                "--gpus {}: no GPU called '{}' in the catalogue; write COUNTxNAME with one of: {}", gpus,
                name, fmt::join(gpu_names(catalogue), ", "));
  if (numa_nodes < 1 || numa_nodes > count)
    return fail(ErrorCode::kInvalidArgument, "--numa {}: must be 1 to the number of GPUs ({})", numa_nodes,
                count);
  machine.gpu = *gpu;
  machine.num_gpus = count;
  machine.numa_nodes = numa_nodes;
  PIVOT_TRY(machine.link, find_link(catalogue, link.empty() ? std::string_view(gpu->link) : link));
  return machine;
}

Result<Machine> detect_machine(const HardwareCatalogue& catalogue, std::string_view proc,
                               std::string_view sys_nodes) {
  namespace fs = std::filesystem;
  std::vector<std::string> models;
  std::error_code error;
  for (fs::directory_iterator at(fs::path(proc) / "gpus", error), end; !error && at != end;
       at.increment(error)) {
    const auto text = read_file(at->path() / "information", 1 << 16);
    if (!text) continue;
    constexpr std::string_view kKey = "Model:";
    const std::size_t begin = text->find(kKey);
    if (begin == std::string::npos) continue;
    std::string model = text->substr(begin + kKey.size(), text->find('\n', begin) - begin - kKey.size());
    model.erase(0, model.find_first_not_of(" \t"));
    models.push_back(std::move(model));
  }
  if (models.empty())
    return fail(
        ErrorCode::kNotFound,
        "this machine has no NVIDIA GPU (nothing under {}); name the hardware with --gpus, for example "
        "--gpus 8xRTX-PRO-6000",
        (fs::path(proc) / "gpus").string());
  std::sort(models.begin(), models.end());
  if (models.front() != models.back())
    return fail(ErrorCode::kUnsupported,
                "this machine mixes GPUs ({} and {}); plan one kind with --gpus COUNTxNAME", models.front(),
                models.back());
  const Gpu* gpu = find_gpu_in_model(catalogue, models.front());
  if (gpu == nullptr)
    return fail(ErrorCode::kUnsupported, "the catalogue has no '{}'; plan with the nearest of: {}",
                models.front(), fmt::join(gpu_names(catalogue), ", "));
  int nodes = 0;
  for (fs::directory_iterator at(fs::path(sys_nodes), error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    nodes +=
        name.starts_with("node") && name.size() > 4 && std::isdigit(static_cast<unsigned char>(name[4])) != 0
            ? 1
            : 0;
  }
  Machine machine;
  machine.gpu = *gpu;
  machine.num_gpus = static_cast<int>(models.size());
  machine.numa_nodes = std::clamp(nodes, 1, machine.num_gpus);
  machine.origin = fmt::format("found on this machine: {} x {}", models.size(), models.front());
  PIVOT_TRY(machine.link, find_link(catalogue, gpu->link));
  return machine;
}

}  // namespace pivot

// Threads and memory on machines of several nodes, described by masks.
#include "ops/cpu/simd/placement.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

namespace pivot::simd {
namespace {

std::vector<int> range(int first, int count) {
  std::vector<int> cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

TEST(Placement, CpuListsAreReadAsTheKernelWritesThem) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11\n").value(), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5").value(), std::vector<int>{5});
  EXPECT_EQ(parse_cpu_list("\n").value(), std::vector<int>{});
  EXPECT_EQ(parse_cpu_list("2,1,1-2").value(), (std::vector<int>{1, 2}));
  for (const char* bad : {"x", "1-", "-1", "3-1", "1,,2", "1;2", "99999999", "0-4294967296"}) {
    ASSERT_FALSE(parse_cpu_list(bad).has_value()) << bad;
    EXPECT_EQ(parse_cpu_list(bad).error().code, ErrorCode::kInvalidData) << bad;
  }
}

TEST(Placement, NothingIsDoneOnOneNode) {
  const Placement placement = place_threads({{{0, range(0, 8)}}}, 8);
  EXPECT_TRUE(placement.cpu_of_piece.empty());
  EXPECT_TRUE(placement.memory_nodes.empty());
  EXPECT_TRUE(apply_to_this_thread(placement, 0).has_value());
}

TEST(Placement, TwoEqualNodesShareThreadsInContiguousPieces) {
  const Machine machine{{{0, range(0, 4)}, {1, range(4, 4)}}};
  EXPECT_EQ(place_threads(machine, 8).cpu_of_piece, range(0, 8));
  EXPECT_EQ(place_threads(machine, 4).cpu_of_piece, (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(place_threads(machine, 4).memory_nodes, (std::vector<int>{0, 1}));
  // One thread stays on one node, and so does its memory.
  EXPECT_EQ(place_threads(machine, 1).cpu_of_piece.size(), 1u);
  EXPECT_EQ(place_threads(machine, 1).memory_nodes.size(), 1u);
}

TEST(Placement, UnequalNodesShareInProportion) {
  // A mask that leaves six cores of node 0 and two of node 2, as a container might.
  const Machine machine{{{0, range(0, 6)}, {2, range(32, 2)}}};
  EXPECT_EQ(place_threads(machine, 8).cpu_of_piece, (std::vector<int>{0, 1, 2, 3, 4, 5, 32, 33}));
  EXPECT_EQ(place_threads(machine, 4).cpu_of_piece, (std::vector<int>{0, 1, 2, 32}));
  EXPECT_EQ(place_threads(machine, 4).memory_nodes, (std::vector<int>{0, 2}));
}

TEST(Placement, MoreThreadsThanCoresTakeCoresInTurn) {
  const Machine machine{{{0, range(0, 2)}, {1, range(2, 2)}}};
  EXPECT_EQ(place_threads(machine, 8).cpu_of_piece, (std::vector<int>{0, 1, 0, 1, 2, 3, 2, 3}));
}

TEST(Placement, EveryThreadHasItsOwnUsableCore) {
  for (const int nodes : {2, 3, 4, 8})
    for (const int cores : {1, 3, 16})
      for (int threads = 1; threads <= nodes * cores; ++threads) {
        Machine machine;
        for (int n = 0; n < nodes; ++n) machine.nodes.push_back({n, range(100 * n, cores)});
        std::vector<int> cpus = place_threads(machine, threads).cpu_of_piece;
        ASSERT_EQ(cpus.size(), static_cast<std::size_t>(threads));
        EXPECT_TRUE(std::is_sorted(cpus.begin(), cpus.end()));
        EXPECT_EQ(std::unique(cpus.begin(), cpus.end()), cpus.end())
            << nodes << " nodes of " << cores << ", " << threads << " threads";
        for (const int cpu : cpus) EXPECT_LT(cpu % 100, cores);
      }
}

TEST(Placement, AMachineIsReadFromItsFolderWithinTheMask) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / ("placement-" + std::to_string(::getpid()));
  const auto write = [&](const char* node, const char* list) {
    std::filesystem::create_directories(folder / node);
    std::ofstream(folder / node / "cpulist") << list;
  };
  write("node0", "0-3\n");
  write("node1", "4-7\n");
  write("node10", "\n");  // memory without cores
  write("node3", "nonsense\n");
  write("power", "0-3\n");
  const Machine machine = describe_machine(folder, {1, 2, 6});
  ASSERT_EQ(machine.nodes.size(), 2u);
  EXPECT_EQ(machine.nodes[0].cpus, (std::vector<int>{1, 2}));
  EXPECT_EQ(machine.nodes[1].id, 1);
  EXPECT_EQ(machine.nodes[1].cpus, std::vector<int>{6});
  // Without a folder all usable cores are one node.
  const Machine plain = describe_machine(folder / "missing", {1, 2, 6});
  ASSERT_EQ(plain.nodes.size(), 1u);
  EXPECT_EQ(plain.nodes[0].cpus, (std::vector<int>{1, 2, 6}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace pivot::simd

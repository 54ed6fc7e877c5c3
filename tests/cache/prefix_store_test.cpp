#include "cache/prefix_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <random>
#include <thread>

#include "base/file.h"
#include "cache/filled_sequence.h"
#include "cache/prefix_index.h"
#include "support/test_data.h"

namespace pivot::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kCheckpoint = 0x1234;

fs::path fresh_folder(const std::string& name) {
  const fs::path folder = scratch_dir() / name;
  fs::remove_all(folder);
  return folder;
}

std::unique_ptr<PrefixStore> open_store(const fs::path& folder,
                                        std::int64_t max_bytes = std::int64_t{1} << 30,
                                        std::uint64_t checkpoint = kCheckpoint) {
  auto store = PrefixStore::open({folder, max_bytes, checkpoint, 1000}, narrow_layout());
  EXPECT_TRUE(store) << store.error().to_string();
  return *std::move(store);
}

// Computes the state at ids and writes it on top of what is there; the position of the parent it got.
std::int64_t write_state(PrefixStore& store, const std::vector<TokenId>& ids) {
  const auto pool = narrow_pool(1, 20);
  auto sequence = SequenceState::create(pool).value();
  EXPECT_TRUE(compute(*sequence, ids));
  const auto image = StateImage::capture(*sequence);
  const std::int64_t parent = store.parent_of(ids);
  store.write(ids, {parent, std::ssize(ids), export_image(*image, ids, parent, kCheckpoint)});
  return parent;
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("pfx1")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<TokenId> plus_one(std::vector<TokenId> ids) {
  ids.push_back(TokenId{999});
  return ids;
}

TEST(PrefixStore, AChainSurvivesARestartAndComesBackWhole) {
  const fs::path folder = fresh_folder("store_restart");
  const std::vector<TokenId> ids = family(1, 1500);
  const auto at = [&](std::int64_t n) { return std::vector<TokenId>(ids.begin(), ids.begin() + n); };
  {
    const auto store = open_store(folder);
    EXPECT_EQ(write_state(*store, at(512)), 0);
    EXPECT_EQ(write_state(*store, at(700)), 512);
    EXPECT_EQ(write_state(*store, at(1280)), 512);
    EXPECT_EQ(write_state(*store, at(1281)), 1280);
    EXPECT_EQ(write_state(*store, at(1500)), 1280);
    EXPECT_TRUE(store->contains(at(1281)));
    store->flush();
    EXPECT_EQ(store->stats().writes, 5u);
  }
  const auto store = open_store(folder);
  EXPECT_EQ(store->stats().entries, 5);
  EXPECT_EQ(store->find(ids), 1281);  // 1500 is not shorter than the ids
  EXPECT_EQ(store->find(plus_one(ids)), 1500);
  EXPECT_EQ(store->find(at(1281)), 1280);
  EXPECT_EQ(store->find(at(1000)), 700);
  EXPECT_EQ(store->find(at(512)), 0);
  EXPECT_EQ(store->find(family(2, 1500)), 0);
  for (const std::int64_t n : {512, 700, 1280, 1281, 1500}) {
    const std::optional<Snapshot> snapshot = store->load(plus_one(ids), n);
    ASSERT_TRUE(snapshot) << n;
    EXPECT_EQ(snapshot->tokens, at(n));
    EXPECT_EQ(fault(*snapshot, narrow_layout()), "") << n;
    const auto pool = narrow_pool(1, 20);
    auto sequence = SequenceState::create(pool).value();
    const Result<> imported = import_sequence(*sequence, *snapshot, kCheckpoint);
    ASSERT_TRUE(imported) << imported.error().to_string();
    ASSERT_TRUE(compute(*sequence, family(9, 300)));
    EXPECT_EQ(fault(*sequence), "") << n;
  }
  EXPECT_FALSE(store->load(ids, 600));
}

TEST(PrefixStore, AnotherCheckpointSeesNothing) {
  const fs::path folder = fresh_folder("store_identity");
  {
    const auto store = open_store(folder);
    write_state(*store, family(1, 600));
  }
  const auto store = open_store(folder, std::int64_t{1} << 30, kCheckpoint + 1);
  EXPECT_EQ(store->stats().entries, 1);  // it counts, but is never found
  EXPECT_EQ(store->find(family(1, 601)), 0);
}

TEST(PrefixStore, OneProcessAtATime) {
  const fs::path folder = fresh_folder("store_lock");
  const auto store = open_store(folder);
  const auto second = PrefixStore::open({folder, 1 << 20, kCheckpoint, 8}, narrow_layout());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
}

TEST(PrefixStore, TheLeastRecentlyUsedGoesAndParentsLast) {
  const fs::path folder = fresh_folder("store_limit");
  std::int64_t one = 0;
  {
    const auto store = open_store(folder);
    write_state(*store, family(1, 512));
    store->flush();
    one = store->stats().bytes;
  }
  fs::remove_all(folder);
  const std::int64_t limit = 9 * one / 2;
  const auto store = open_store(folder, limit);
  for (std::uint32_t f = 1; f <= 4; ++f) write_state(*store, family(f, 512));
  store->flush();
  ASSERT_TRUE(store->load(plus_one(family(1, 512)), 512));  // used
  write_state(*store, family(1, 700));                      // builds on it
  write_state(*store, family(5, 512));
  store->flush();
  EXPECT_LE(store->stats().bytes, limit);
  EXPECT_GT(store->stats().evictions, 0u);
  EXPECT_EQ(store->find(family(2, 513)), 0);
  EXPECT_EQ(store->find(family(1, 701)), 700);
  std::uintmax_t on_disk = 0;
  for (const fs::path& file : files_of(folder)) on_disk += fs::file_size(file);
  EXPECT_EQ(static_cast<std::int64_t>(on_disk), store->stats().bytes);
}

TEST(PrefixStore, ADamagedFileIsDroppedWithWhatBuildsOnItAndCounted) {
  const std::vector<TokenId> ids = family(1, 900);
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const fs::path folder = fresh_folder("store_damage");
    {
      const auto store = open_store(folder);
      write_state(*store, {ids.begin(), ids.begin() + 512});
      write_state(*store, ids);
    }
    const std::vector<fs::path> files = files_of(folder);
    ASSERT_EQ(files.size(), 2u);
    const fs::path victim = files[random() % 2];
    std::string bytes = read_file(victim).value();
    if (round % 3 == 0) {
      bytes.resize(random() % bytes.size());
    } else if (round % 3 == 1) {
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    } else {
      bytes[random() % std::min<std::size_t>(bytes.size(), 200)] = static_cast<char>(random());
    }
    const bool same = bytes == read_file(victim).value();
    std::ofstream(victim, std::ios::binary) << bytes;
    const auto store = open_store(folder);
    const std::optional<Snapshot> snapshot = store->load(plus_one(ids), 900);
    ASSERT_EQ(snapshot.has_value(), same) << "round " << round;
    if (same) continue;
    EXPECT_EQ(store->stats().damaged, 1u);
    EXPECT_FALSE(fs::exists(victim));
    const bool parent_was_hit = victim.filename().string().ends_with("-512-0");
    EXPECT_EQ(store->find(plus_one(ids)), parent_was_hit ? 0 : 512);
    if (!parent_was_hit) {
      EXPECT_EQ(fault(*store->load(plus_one(ids), 512), narrow_layout()), "");
    }
  }
}

TEST(PrefixStore, AMissingParentIsNoticedAtTheNextStart) {
  const fs::path folder = fresh_folder("store_orphan");
  const std::vector<TokenId> ids = family(1, 900);
  {
    const auto store = open_store(folder);
    write_state(*store, {ids.begin(), ids.begin() + 512});
    write_state(*store, ids);
  }
  for (const fs::path& file : files_of(folder))
    if (file.filename().string().ends_with("-512-0")) fs::remove(file);
  const auto store = open_store(folder);
  EXPECT_EQ(store->stats().entries, 0);
  EXPECT_TRUE(files_of(folder).empty());
}

TEST(PrefixStore, AFolderThatCannotBeWrittenIsCountedAndServingGoesOn) {
  const fs::path folder = fresh_folder("store_readonly");
  const auto store = open_store(folder);
  fs::remove_all(folder);  // the disk is gone
  write_state(*store, family(1, 600));
  store->flush();
  EXPECT_EQ(store->stats().write_failures, 1u);
  EXPECT_EQ(store->find(family(1, 601)), 0);
}

// A process that writes is killed at a random moment, fifty times over the same folder: what is found
// afterwards is complete and right.
TEST(PrefixStore, KilledWhileWritingNothingIsEverDamaged) {
  const fs::path folder = fresh_folder("store_kill");
  std::mt19937 random(11);
  std::int64_t loaded = 0;
  for (int round = 0; round < 50; ++round) {
    int progress[2];  // a byte for each state that is on the disk: how fast the machine is does not matter
    ASSERT_EQ(::pipe(progress), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(progress[0]);
      const auto store = open_store(folder, 3 << 20);
      for (std::uint32_t i = 0; i < 1000; ++i)
        for (const std::int64_t n : {256, 512, 700}) {
          write_state(*store, family(static_cast<std::uint32_t>(round) * 3 + i % 5, n + i / 5));
          store->flush();
          if (::write(progress[1], "x", 1) != 1) ::_exit(1);
        }
      ::_exit(0);
    }
    ::close(progress[1]);
    bool is_writing = true;
    for (std::uint32_t states = 1 + random() % 8; states > 0 && is_writing; --states) {
      char byte = 0;
      is_writing = ::read(progress[0], &byte, 1) == 1;
    }
    // Somewhere in the next ones.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ::kill(child, SIGKILL);
    ::close(progress[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(is_writing) << "the writer ended by itself in round " << round;
    const auto store = open_store(folder, 3 << 20);
    for (std::uint32_t f = 0; f < static_cast<std::uint32_t>(round) * 3 + 5; ++f) {
      const std::vector<TokenId> ids = family(f, 1000);
      const std::int64_t position = store->find(ids);
      if (position == 0) continue;
      const std::optional<Snapshot> snapshot = store->load(ids, position);
      ASSERT_TRUE(snapshot) << "round " << round;
      ASSERT_EQ(fault(*snapshot, narrow_layout()), "") << "round " << round;
      ++loaded;
    }
    EXPECT_EQ(store->stats().damaged, 0u);
    for (const fs::path& file : files_of(folder)) EXPECT_EQ(file.string().find(".tmp."), std::string::npos);
  }
  EXPECT_GT(loaded, 50);
}

}  // namespace
}  // namespace pivot::test

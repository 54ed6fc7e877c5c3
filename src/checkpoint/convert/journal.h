// The memory of a conversion across kills: which source, which target, which shards are finished. Lives in
// the output folder until the conversion is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/error.h"

namespace pivot {

inline constexpr const char* kJournalName = ".pivot-convert.json";

class Journal {
 public:
  // Takes the folder: creates it where absent, locks it against a second conversion, and reads what an
  // earlier run left. kInvalidArgument where it holds files but no journal, or the journal of another
  // conversion; kUnavailable while another conversion holds the lock.
  static Result<Journal> open(const std::filesystem::path& folder, const std::string& identity);
  Journal(Journal&& other) noexcept;
  Journal& operator=(Journal&& other) noexcept;
  ~Journal();  // releases the lock; the journal file stays

  // Finished and still there with the size it had.
  bool finished(const std::string& shard) const;
  Result<> add(const std::string& shard, std::uint64_t file_bytes);
  // The conversion is complete: the journal goes.
  Result<> close();

 private:
  Journal(std::filesystem::path folder, std::string identity, int lock)
      : folder_(std::move(folder)), identity_(std::move(identity)), lock_(lock) {}
  Result<> save() const;
  std::filesystem::path folder_;
  std::string identity_;
  int lock_ = -1;
  std::map<std::string, std::uint64_t> shards_;  // file -> bytes
};

}  // namespace pivot

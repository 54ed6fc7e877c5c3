// What XGrammar says while it works.
#pragma once

#include <string>
#include <vector>

namespace pivot {

// Collects the warnings that this thread's calls of the library give, as long as it lives.
class LibraryLog {
 public:
  LibraryLog();
  ~LibraryLog();
  LibraryLog(const LibraryLog&) = delete;
  LibraryLog& operator=(const LibraryLog&) = delete;
  const std::vector<std::string>& warnings() const { return warnings_; }
  void add(const std::string& warning) { warnings_.push_back(warning); }

 private:
  std::vector<std::string> warnings_;
  LibraryLog* outer_;
};

}  // namespace pivot

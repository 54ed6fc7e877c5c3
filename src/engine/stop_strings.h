// Stop strings over a stream of text pieces: nothing of a stop string is ever released, everything else is,
// and the result does not depend on where the pieces are cut.
//
// The first stop string to be complete wins; of several that complete with the same byte, the longest.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace pivot {

class StopStrings {
 public:
  static constexpr std::size_t kMaxCount = 16;
  static constexpr std::size_t kMaxBytes = 4096;

  // Errors: kInvalidArgument for an empty stop string, more than kMaxCount, or one longer than kMaxBytes.
  static Result<StopStrings> create(std::vector<std::string> stops);
  StopStrings() = default;  // stops at nothing

  // Takes a piece and returns the text that can be released. After a match returns "" and ignores further
  // pieces.
  std::string feed(std::string_view piece);
  // The end of the text: releases what was held back because it might have become a stop string.
  std::string finish();

  bool matched() const { return matched_ >= 0; }
  // The stop string that matched. REQUIRES: matched().
  const std::string& match() const { return stops_[static_cast<std::size_t>(matched_)].text; }
  // Ready for another text with the same stop strings.
  void reset();

 private:
  struct Stop {
    std::string text;
    std::vector<std::size_t> failure;  // length of the longest proper prefix that is a suffix of text[0..i]
    std::size_t length = 0;            // how much of `text` the end of the stream matches
  };
  std::vector<Stop> stops_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace pivot

#include "engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace pivot {

Result<StopStrings> StopStrings::create(std::vector<std::string> stops) {
  if (stops.size() > kMaxCount)
    return fail(ErrorCode::kInvalidArgument, "{} stop strings were given; at most {} are possible",
                stops.size(), kMaxCount);
  StopStrings result;
  for (std::string& text : stops) {
    if (text.empty())
      return fail(ErrorCode::kInvalidArgument, "a stop string is empty; leave it out or give it a character");
    if (text.size() > kMaxBytes)
      return fail(ErrorCode::kInvalidArgument, "a stop string of {} bytes is longer than {}", text.size(),
                  kMaxBytes);
    // The prefix function of Knuth, Morris and Pratt.
    Stop stop;
    stop.failure.assign(text.size(), 0);
    for (std::size_t i = 1; i < text.size(); ++i) {
      std::size_t length = stop.failure[i - 1];
      while (length > 0 && text[i] != text[length]) length = stop.failure[length - 1];
      stop.failure[i] = length + (text[i] == text[length] ? 1 : 0);
    }
    stop.text = std::move(text);
    result.stops_.push_back(std::move(stop));
  }
  return result;
}

std::string StopStrings::feed(std::string_view piece) {
  std::string released;
  if (matched()) return released;
  if (stops_.empty()) return std::string(piece);
  for (const char c : piece) {
    held_.push_back(c);
    std::size_t longest = 0;
    for (std::size_t i = 0; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      while (stop.length > 0 && stop.text[stop.length] != c) stop.length = stop.failure[stop.length - 1];
      if (stop.text[stop.length] == c) ++stop.length;
      longest = std::max(longest, stop.length);
      if (stop.length == stop.text.size() &&
          (!matched() || stop.text.size() > stops_[static_cast<std::size_t>(matched_)].text.size()))
        matched_ = static_cast<int>(i);
    }
    if (matched()) {
      released.append(held_, 0, held_.size() - match().size());
      held_.clear();
      return released;
    }
    // What is held is exactly the longest end of the text that may still grow into a stop string.
    const std::size_t free = held_.size() - longest;
    released.append(held_, 0, free);
    held_.erase(0, free);
  }
  return released;
}

std::string StopStrings::finish() {
  std::string rest = matched() ? std::string() : std::move(held_);
  held_.clear();
  for (Stop& stop : stops_) stop.length = 0;
  return rest;
}

void StopStrings::reset() {
  (void)finish();
  matched_ = -1;
}

}  // namespace pivot

// The statistics that reports and verdicts rest on. Pure functions.
#pragma once

#include <cstdint>
#include <string_view>

namespace pivot::recall {

struct Interval {
  double low = 0;
  double high = 0;
};

// Wilson's score interval of a proportion, 95 % unless z says otherwise; [0, 1] for no trials.
Interval wilson_interval(std::int64_t successes, std::int64_t trials, double z = 1.959964);

// The same cases under two conditions: how often only one of them was right.
struct PairedCounts {
  std::int64_t both_right = 0;
  std::int64_t both_wrong = 0;
  std::int64_t only_first = 0;
  std::int64_t only_second = 0;

  void add(bool first, bool second);
  std::int64_t total() const { return both_right + both_wrong + only_first + only_second; }
  // Recall of the second minus recall of the first, in [-1, 1]; 0 without cases.
  double difference() const;
};

// McNemar's exact test, two-sided: the probability, were both conditions equally good, of a split of the
// discordant pairs at least this uneven. 1 where there are none.
double mcnemar_exact(const PairedCounts& pairs);

// Newcombe's interval (1998, method 10) of the paired difference, 95 %.
Interval paired_interval(const PairedCounts& pairs);

// 1 - Levenshtein distance / length of the longer, over code points of UTF-8 (bytes that are none count
// alone); 1 for two empty texts.
double edit_similarity(std::string_view a, std::string_view b);

}  // namespace pivot::recall

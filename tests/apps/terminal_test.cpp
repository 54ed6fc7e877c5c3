#include "terminal.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "environment.h"

namespace pivot::cli {
namespace {

TEST(Terminal, FormatsNumbersForPeople) {
  EXPECT_EQ(format_duration(0), "0 ms");
  EXPECT_EQ(format_duration(0.0123), "12 ms");
  EXPECT_EQ(format_duration(0.1), "0.1 s");
  EXPECT_EQ(format_duration(59.94), "59.9 s");
  EXPECT_EQ(format_duration(59.96), "1 min 00 s");
  EXPECT_EQ(format_duration(3599.4), "59 min 59 s");
  EXPECT_EQ(format_duration(3660), "1 h 01 min");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1048575), "1.0 MiB");
  EXPECT_EQ(format_bytes(160ll << 30), "160.0 GiB");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1048576), "1 048 576");
  EXPECT_EQ(format_count(-1234), "-1 234");
}

TEST(Terminal, MeasuresWidths) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("é"), 1);
  EXPECT_EQ(display_width("e\u0301"), 1);
  EXPECT_EQ(display_width("你好"), 4);
  EXPECT_EQ(display_width("😀"), 2);
  EXPECT_EQ(display_width("a\xFF"), 2);
  EXPECT_EQ(display_width(""), 0);
}

TEST(Terminal, MakesControlCharactersVisible) {
  EXPECT_EQ(printable("a\n\tb é"), "a\n\tb é");
  EXPECT_EQ(printable("\x1b[2J\r\x7f"), "\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(printable("\xC2\x9B"
                      "31m"),
            "\\x9b31m");
}

TEST(ProgressBar, FitsTheWidth) {
  using Unit = ProgressBar::Unit;
  EXPECT_EQ(ProgressBar::line("reading", Unit::kTokens, 50, 100, 2.0, 60),
            "reading  [#########--------]   50%  25 tokens/s  2.0 s left");
  EXPECT_EQ(ProgressBar::line("loading", Unit::kBytes, 100, 100, 1.0, 45).find(" left"), std::string::npos);
  for (const int width : {5, 10, 20, 40, 41, 60, 80, 200}) {
    for (const int done : {0, 1, 99, 100, 120}) {
      const std::string line = ProgressBar::line("reading", Unit::kTokens, done, 100, 0.5, width);
      EXPECT_LT(display_width(line), width) << line;
      EXPECT_NE(line.find('%'), std::string::npos);
    }
  }
  EXPECT_NE(ProgressBar::line("x", Unit::kTokens, 0, 0, 0.0, 80).find("0%"), std::string::npos);
}

TEST(InterruptScope, CatchesTheFirstInterruptOnly) {
  {
    const InterruptScope scope;
    EXPECT_FALSE(InterruptScope::interrupted());
    ::raise(SIGINT);
    EXPECT_TRUE(InterruptScope::interrupted());
    InterruptScope::clear();
    ::raise(SIGINT);  // after clear it is a first one again
    EXPECT_TRUE(InterruptScope::flag());
  }
  EXPECT_EXIT(
      {
        const InterruptScope scope;
        ::raise(SIGINT);
        ::raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(Environment, NamesVariables) {
  EXPECT_EQ(environment_variable("max-tokens"), "PIVOT_MAX_TOKENS");
  EXPECT_EQ(environment_variable("top-p"), "PIVOT_TOP_P");
}

}  // namespace
}  // namespace pivot::cli

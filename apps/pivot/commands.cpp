#include <array>

#include "command.h"

namespace pivot::cli {

std::span<const Command> command_table() {
  static constexpr std::array kCommands = {
      Command{"knobs", "Print the run-time choices that can change numerics", add_knobs},
  };
  return kCommands;
}

}  // namespace pivot::cli

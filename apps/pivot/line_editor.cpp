#include "line_editor.h"

#include <errno.h>
#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cwchar>

#include "terminal.h"

namespace pivot::cli {
namespace {

// libedit retries a read that a signal ended, so that Ctrl-C would go unseen; this reader looks at the flag
// instead. Returns 1 with a character, 0 at the end of input, -1 when interrupted or on an error.
int read_character(EditLine* editor, wchar_t* character) {
  FILE* input = nullptr;
  el_get(editor, EL_GETFP, 0, &input);
  const int descriptor = fileno(input);
  std::mbstate_t state{};
  for (;;) {
    if (InterruptScope::interrupted()) return -1;
    pollfd wait{descriptor, POLLIN, 0};
    // The timeout covers a signal that comes between the look at the flag and the wait.
    const int ready = ::poll(&wait, 1, 200);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    if (ready < 0) return -1;
    char byte = 0;
    const ssize_t count = ::read(descriptor, &byte, 1);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return static_cast<int>(count);
    const std::size_t length = std::mbrtowc(character, &byte, 1, &state);
    if (length == static_cast<std::size_t>(-2)) continue;  // an unfinished character
    if (length == static_cast<std::size_t>(-1)) {
      state = {};
      continue;  // bytes that are no text
    }
    return 1;
  }
}

}  // namespace

struct LineEditor::Editor {
  EditLine* edit = nullptr;
  History* history = nullptr;
  std::string prompt;

  Editor() {
    edit = el_init("pivot", stdin, stdout, stderr);
    history = history_init();
    HistEvent event;
    ::history(history, &event, H_SETSIZE, 1000);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(edit, EL_CLIENTDATA, this);
    el_set(edit, EL_PROMPT_ESC, &Editor::show_prompt, '\1');
    el_set(edit, EL_EDITOR, "emacs");
    el_set(edit, EL_SIGNAL, 0);
    el_set(edit, EL_HIST, &::history, history);
    el_set(edit, EL_GETCFN, &read_character);
    el_source(edit, nullptr);  // the user's ~/.editrc
  }
  ~Editor() {
    el_end(edit);
    history_end(history);
  }

 private:
  static char* show_prompt(EditLine* edit) {
    Editor* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return self->prompt.data();
  }
};

LineEditor::LineEditor() {
  if (is_terminal(STDIN_FILENO) && is_terminal(STDOUT_FILENO)) editor_ = std::make_unique<Editor>();
  if (editor_ && editor_->edit == nullptr) editor_.reset();  // out of memory: plain lines do
}

LineEditor::~LineEditor() = default;

LineEditor::Outcome LineEditor::read(const std::string& prompt, std::string& line) {
  line.clear();
  InterruptScope::clear();
  if (!editor_) {
    int c = 0;
    while ((c = std::getc(stdin)) != EOF && c != '\n') line += static_cast<char>(c);
    if (InterruptScope::interrupted()) return Outcome::kInterrupted;
    return c == EOF && line.empty() ? Outcome::kEnd : Outcome::kLine;
  }
  editor_->prompt = prompt;
  el_resize(editor_->edit);
  // libedit shows the prompt first and leaves the line mode of the terminal after that: a Ctrl-D that comes in
  // between (a script answers at once) would be stored as the end of a line that nobody reads any more.
  el_set(editor_->edit, EL_PREP_TERM, 1);
  int count = 0;
  const char* text = el_gets(editor_->edit, &count);
  if (InterruptScope::interrupted()) {
    InterruptScope::clear();
    el_reset(editor_->edit);
    std::fputs("^C\n", stdout);
    std::fflush(stdout);
    return Outcome::kInterrupted;
  }
  if (text == nullptr || count <= 0) return Outcome::kEnd;
  line.assign(text, static_cast<std::size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  if (line.find_first_not_of(" \t") != std::string::npos) {
    HistEvent event;
    ::history(editor_->history, &event, H_ENTER, line.c_str());
  }
  return Outcome::kLine;
}

}  // namespace pivot::cli

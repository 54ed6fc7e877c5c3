#include "text/tokenizer/tokenizer.h"

#include <mutex>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/text_index.h"
#include "text/tokenizer/tokenizer_json.h"
#include "text/tokenizer/utf8.h"

namespace pivot {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{256} << 20;  // the real file has 6.4 MB
constexpr std::size_t kMaxIdleWorkspaces = 8;                  // about 2 MiB each

struct Workspace {
  Bpe::Workspace bpe;
  PreTokenizer::Workspace pre;
  void trim() {
    bpe.trim();
    pre = {};
  }
};

// Workspaces that no call is using. encode() borrows one, so that its word cache survives from call to call
// and is never shared by two threads.
class WorkspacePool {
 public:
  std::unique_ptr<Workspace> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<Workspace> workspace = std::move(idle_.back());
        idle_.pop_back();
        return workspace;
      }
    }
    return std::make_unique<Workspace>();
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    workspace->trim();
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdleWorkspaces) idle_.push_back(std::move(workspace));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerSpec parsed, PreTokenizer pre_tokenizer);
  std::optional<TokenId> find(std::string_view text) const { return index.find(texts, text); }
  const AddedToken* added_of(TokenId id) const;
  void encode_plain(std::string_view text, Workspace& workspace, std::vector<TokenId>& out) const;

  TokenizerSpec spec;
  std::vector<std::string_view> texts;         // [id] -> bytes, into spec.tokens
  std::vector<const AddedToken*> added_by_id;  // [id] -> entry of spec.added or null
  TextIndex index;
  AddedTokenSplitter added;
  PreTokenizer pre;
  Bpe bpe;
  SpecialTokens special;
  mutable WorkspacePool pool;
};

Tokenizer::Impl::Impl(TokenizerSpec parsed, PreTokenizer pre_tokenizer)
    : spec(std::move(parsed)),
      texts(spec.tokens.begin(), spec.tokens.end()),
      added_by_id(texts.size(), nullptr),
      index(texts.size()),
      added(spec.added),
      pre(std::move(pre_tokenizer)),
      bpe(spec.byte_tokens, spec.merges) {
  for (const AddedToken& token : spec.added) {
    added_by_id[static_cast<std::size_t>(raw(token.id))] = &token;
    index.insert(texts, token.id);
  }
  for (std::size_t id = 0; id < texts.size(); ++id) {
    // Where two entries stand for the same bytes the added token or else the lowest id is the one found.
    if (!texts[id].empty()) index.insert(texts, TokenId{static_cast<std::int32_t>(id)});
  }
  spec.merges = {};
  special.bos = find("<｜begin▁of▁sentence｜>");
  special.eos = find("<｜end▁of▁sentence｜>");
  special.pad = find("<｜▁pad▁｜>");
  special.user = find("<｜User｜>");
  special.assistant = find("<｜Assistant｜>");
  special.think_open = find("<think>");
  special.think_close = find("</think>");
  special.dsml = find("｜DSML｜");
  special.latest_reminder = find("<｜latest_reminder｜>");
}

const AddedToken* Tokenizer::Impl::added_of(TokenId id) const {
  const auto row = static_cast<std::size_t>(raw(id));
  return raw(id) >= 0 && row < added_by_id.size() ? added_by_id[row] : nullptr;
}

void Tokenizer::Impl::encode_plain(std::string_view text, Workspace& workspace,
                                   std::vector<TokenId>& out) const {
  pre.split(text, workspace.pre, [&](std::string_view word) {
    if (spec.ignore_merges) {
      if (const auto whole = find(word); whole && added_of(*whole) == nullptr) return out.push_back(*whole);
    }
    bpe.encode(word, workspace.bpe, out);
  });
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& folder_or_file) {
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(folder_or_file, error);
  const std::filesystem::path path = is_folder ? folder_or_file / "tokenizer.json" : folder_or_file;
  if (!std::filesystem::exists(path, error)) {
    return fail(ErrorCode::kNotFound,
                "there is no {}, which holds the checkpoint's tokenizer; copy it from where the "
                "checkpoint came from",
                path.string());
  }
  PIVOT_TRY(const std::string json, read_file(path, kMaxFileBytes));
  return parse(json, path.string());
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view where) {
  PIVOT_TRY(TokenizerSpec spec, parse_tokenizer_json(json, where));
  Result<PreTokenizer> pre = PreTokenizer::create(spec.splits);
  if (!pre) return fail(std::move(pre.error()).with(fmt::format("cannot use {}", where)));
  return Tokenizer(std::make_unique<const Impl>(std::move(spec), std::move(*pre)));
}

std::vector<TokenId> Tokenizer::encode(std::string_view utf8) const {
  std::string repaired;
  if (!utf8::is_valid(utf8)) {
    repaired = utf8::repaired(utf8);
    utf8 = repaired;
  }
  std::vector<TokenId> ids;
  ids.reserve(utf8.size() / 4 + 8);
  std::unique_ptr<Workspace> workspace = impl_->pool.take();
  impl_->added.split(
      utf8, [&](std::string_view text) { impl_->encode_plain(text, *workspace, ids); },
      [&](TokenId id) { ids.push_back(id); });
  impl_->pool.give_back(std::move(workspace));
  return ids;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  }
  return utf8::repaired(bytes);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  const auto row = static_cast<std::size_t>(raw(id));
  return raw(id) >= 0 && row < impl_->texts.size() ? impl_->texts[row] : std::string_view();
}

std::optional<TokenId> Tokenizer::token_id(std::string_view text) const { return impl_->find(text); }

bool Tokenizer::is_special(TokenId id) const {
  const AddedToken* token = impl_->added_of(id);
  return token != nullptr && token->special;
}

bool Tokenizer::is_added(TokenId id) const { return impl_->added_of(id) != nullptr; }

std::int64_t Tokenizer::vocab_size() const { return static_cast<std::int64_t>(impl_->texts.size()); }

const SpecialTokens& Tokenizer::special() const { return impl_->special; }

}  // namespace pivot

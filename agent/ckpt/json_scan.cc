#include "agent/ckpt/json_scan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "agent/ckpt/text.h"

namespace dgxrun::agent::ckpt {
namespace {

// A loop over tokens; what is open is a string of '{' and '['.
class Scanner {
 public:
  Scanner(std::string_view bytes, JsonVisitor visit) : bytes_(bytes), visit_(visit) {}

  absl::Status Run(JsonSummary& summary) {
    SkipSpace();
    summary.object = Peek() == '{';
    do {
      if (absl::Status status = Value(); !status.ok()) return status;
      summary.ended_early = ended_early_;
      if (ended_early_) return absl::OkStatus();
      if (absl::Status status = AfterValue(); !status.ok()) return status;
    } while (!open_.empty());
    return at_ == bytes_.size() ? absl::OkStatus() : Wrong("text after its end");
  }

 private:
  char Peek() const { return at_ < bytes_.size() ? bytes_[at_] : '\0'; }
  void SkipSpace() {
    while (Peek() == ' ' || Peek() == '\n' || Peek() == '\r' || Peek() == '\t') ++at_;
  }
  bool Take(char c) {
    SkipSpace();
    if (Peek() != c || at_ >= bytes_.size()) return false;
    ++at_;
    return true;
  }
  absl::Status Wrong(std::string_view what) const {
    if (at_ >= bytes_.size()) return absl::DataLossError("JSON that breaks off");
    return absl::DataLossError(Cat({"not JSON: ", what, " at byte ", Str(at_)}));
  }

  // One scalar, or the way down to the first scalar of containers; empty ones are closed at once.
  absl::Status Value() {
    while (true) {
      SkipSpace();
      const char c = Peek();
      if (c != '{' && c != '[') return Scalar();
      if (open_.size() >= kMaxJsonDepth) {
        return absl::ResourceExhaustedError("JSON that is nested deeper than is read");
      }
      ++at_;
      open_.push_back(c);
      keys_.emplace_back();
      if (Take(c == '{' ? '}' : ']')) {
        Close();
        return absl::OkStatus();
      }
      if (c == '{') {
        if (absl::Status status = Key(); !status.ok()) return status;
      }
    }
  }

  absl::Status Key() {
    SkipSpace();
    if (absl::Status status = String(keys_.back()); !status.ok()) return status;
    return Take(':') ? absl::OkStatus() : Wrong("no colon after a key");
  }

  // Commas and closing brackets, up to where the next value begins or nothing is open.
  absl::Status AfterValue() {
    while (!open_.empty()) {
      const bool object = open_.back() == '{';
      if (Take(',')) return object ? Key() : absl::OkStatus();
      if (!Take(object ? '}' : ']')) return Wrong("neither a comma nor an end");
      Close();
    }
    SkipSpace();
    return absl::OkStatus();
  }
  void Close() {
    open_.pop_back();
    keys_.pop_back();
  }

  absl::Status Scalar() {
    JsonScalar scalar;
    std::string text;
    if (Peek() == '"') {
      if (absl::Status status = String(text); !status.ok()) return status;
      scalar.text = text;
    } else if (absl::Status status = Bare(scalar); !status.ok()) {
      return status;
    }
    ended_early_ = !visit_(keys_, scalar);
    return absl::OkStatus();
  }

  // Numbers and words; Python's json module writes NaN and Infinity for what is no number, and so must we
  // take them.
  absl::Status Bare(JsonScalar& scalar) {
    size_t end = at_;
    auto in_word = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' ||
             c == '-' || c == '.';
    };
    while (end < bytes_.size() && in_word(bytes_[end])) ++end;
    const std::string_view word = bytes_.substr(at_, end - at_);
    const bool known = word == "true" || word == "false" || word == "null" || word == "NaN" ||
                       word == "Infinity" || word == "-Infinity";
    if (!known && !Number(word, scalar)) return Wrong("no value");
    at_ = end;
    return absl::OkStatus();
  }
  static bool Number(std::string_view word, JsonScalar& scalar) {
    if (word.empty() || !(word[0] == '-' || (word[0] >= '0' && word[0] <= '9'))) return false;
    int64_t integer = 0;
    const char* end = word.data() + word.size();
    const auto whole = std::from_chars(word.data(), end, integer);
    if (whole.ec == std::errc() && whole.ptr == end) {
      scalar.integer = integer;
      return true;
    }
    double real = 0;
    const auto parsed = std::from_chars(word.data(), end, real);
    if (parsed.ptr != end || (parsed.ec != std::errc() && parsed.ec != std::errc::result_out_of_range))
      return false;
    constexpr double kExact = 9007199254740992.0;  // 2^53: below it a double holds every whole number
    if (parsed.ec == std::errc() && std::floor(real) == real && std::fabs(real) <= kExact) {
      scalar.integer = static_cast<int64_t>(real);
    }
    return true;
  }

  absl::Status String(std::string& text) {
    if (Peek() != '"') return Wrong("no text where one must be");
    ++at_;
    text.clear();
    while (at_ < bytes_.size()) {
      const char c = bytes_[at_];
      if (c == '"') {
        ++at_;
        return absl::OkStatus();
      }
      if (static_cast<unsigned char>(c) < 0x20) return Wrong("a control character in a text");
      ++at_;
      if (c != '\\') {
        text.push_back(c);
      } else if (!Escape(text)) {
        return Wrong("an escape that is none");
      }
    }
    return Wrong("");
  }
  bool Escape(std::string& text) {
    const char c = Peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/':
        text.push_back(c);
        return true;
      case 'b':
        text.push_back('\b');
        return true;
      case 'f':
        text.push_back('\f');
        return true;
      case 'n':
        text.push_back('\n');
        return true;
      case 'r':
        text.push_back('\r');
        return true;
      case 't':
        text.push_back('\t');
        return true;
      case 'u':
        break;
      default:
        return false;
    }
    uint32_t code = 0;
    if (!Hex4(code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && bytes_.substr(at_, 2) == "\\u") {
      at_ += 2;
      uint32_t low = 0;
      if (!Hex4(low) || low < 0xDC00 || low > 0xDFFF) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendUtf8(code, text);
    return true;
  }
  bool Hex4(uint32_t& code) {
    if (bytes_.size() - std::min(at_, bytes_.size()) < 4) return false;
    const char* end = bytes_.data() + at_ + 4;
    const auto parsed = std::from_chars(bytes_.data() + at_, end, code, 16);
    at_ += 4;
    return parsed.ec == std::errc() && parsed.ptr == end;
  }
  static void AppendUtf8(uint32_t code, std::string& text) {
    auto put = [&text](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xC0 | code >> 6);
      put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      put(0xE0 | code >> 12);
      put(0x80 | (code >> 6 & 0x3F));
      put(0x80 | (code & 0x3F));
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
      put(0x80 | (code >> 6 & 0x3F));
      put(0x80 | (code & 0x3F));
    }
  }

  std::string_view bytes_;
  JsonVisitor visit_;
  size_t at_ = 0;
  std::string open_;
  std::vector<std::string> keys_;  // one for each that is open
  bool ended_early_ = false;
};

}  // namespace

absl::Status ScanJson(std::string_view bytes, JsonVisitor visit, JsonSummary* summary) {
  JsonSummary unused;
  return Scanner(bytes, visit).Run(summary != nullptr ? *summary : unused);
}

}  // namespace dgxrun::agent::ckpt

#include "src/data/formats/pickle.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::data {

namespace {

using Kind = PickleValue::Kind;

// The machine that a pickle is a program for: a stack of values, marks in it, and a memo.
class PickleMachine {
 public:
  PickleMachine(std::span<const std::uint8_t> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  Pickle run() {
    for (;;) {
      at_ = next_;
      const std::uint8_t opcode = take(1)[0];
      if (opcode == '.') {
        const PickleValue* const value = pop();
        return {std::move(values_), value};
      }
      if (!run_number(opcode) && !run_text(opcode) && !run_list(opcode) && !run_memo(opcode) && !run_object(opcode))
        fail(fmt::format("has opcode 0x{:02x}, which only other objects than lists, numbers and arrays need", opcode));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw FileError("{}: byte {} of the pickle {}", path_, at_, why);
  }

  std::span<const std::uint8_t> take(std::size_t count) {
    if (count > bytes_.size() - next_) fail("is the last one: the pickle is truncated");
    const auto taken = bytes_.subspan(next_, count);
    next_ += count;
    return taken;
  }
  std::uint64_t take_number(std::size_t bytes) {
    std::uint64_t number = 0;
    const auto all = take(bytes);
    for (std::size_t i = 0; i < bytes; ++i) number |= std::uint64_t{all[i]} << (8 * i);
    return number;
  }
  std::string take_text(std::size_t count) {
    const auto all = take(count);
    return {all.begin(), all.end()};
  }
  std::string take_line() {
    const auto rest = bytes_.subspan(next_);
    const auto end = std::find(rest.begin(), rest.end(), '\n');
    if (end == rest.end()) fail("begins a name without an end");
    const std::string line = take_text(static_cast<std::size_t>(end - rest.begin()));
    ++next_;
    return line;
  }

  PickleValue* pop() {
    if (stack_.empty()) fail("takes a value from an empty stack");
    PickleValue* const value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    if (stack_.empty()) fail("uses a value of an empty stack");
    return *stack_.back();
  }
  std::vector<PickleValue*> pop_to_mark() {
    if (marks_.empty() || marks_.back() > stack_.size()) fail("needs a mark that is not there");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleValue*> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  std::vector<PickleValue*> pop_some(std::size_t count) {
    std::vector<PickleValue*> values(count);
    for (std::size_t i = count; i-- > 0;) values[i] = pop();
    return values;
  }
  void push(PickleValue value) { stack_.push_back(&values_.emplace_back(std::move(value))); }
  bool push_integer(std::int64_t value) {
    push({Kind::kInteger, value});
    return true;
  }
  bool push_text(std::size_t bytes) {
    push({Kind::kText, 0, take_text(bytes)});
    return true;
  }
  bool push_list(std::vector<PickleValue*> items) {
    push({Kind::kList, 0, {}, std::move(items)});
    return true;
  }

  bool run_number(std::uint8_t opcode) {
    switch (opcode) {
      case 'N': push({}); return true;
      case 0x88: return push_integer(1);  // NEWTRUE
      case 0x89: return push_integer(0);  // NEWFALSE
      case 'K': return push_integer(static_cast<std::int64_t>(take_number(1)));
      case 'M': return push_integer(static_cast<std::int64_t>(take_number(2)));
      case 'J': return push_integer(static_cast<std::int32_t>(take_number(4)));
      case 0x8a: {  // LONG1
        const std::size_t bytes = take(1)[0];
        if (bytes > 8) fail(fmt::format("has an integer of {} bytes", bytes));
        const std::uint64_t number = take_number(bytes);
        const auto unused = static_cast<int>(64 - 8 * bytes);
        return push_integer(bytes == 0 ? 0 : static_cast<std::int64_t>(number << unused) >> unused);
      }
      default: return false;
    }
  }

  bool run_text(std::uint8_t opcode) {
    switch (opcode) {
      case 'C':   // SHORT_BINBYTES
      case 'U':   // SHORT_BINSTRING
      case 0x8c:  // SHORT_BINUNICODE
        return push_text(take_number(1));
      case 'B':  // BINBYTES
      case 'T':  // BINSTRING
      case 'X':  // BINUNICODE
        return push_text(take_number(4));
      default: return false;
    }
  }

  bool run_list(std::uint8_t opcode) {
    switch (opcode) {
      case '(': marks_.push_back(stack_.size()); return true;
      case ']':
      case ')': return push_list({});
      case 0x85:
      case 0x86:
      case 0x87: return push_list(pop_some(opcode - std::size_t{0x84}));
      case 't':
      case 'l': return push_list(pop_to_mark());
      case 'a': {
        PickleValue* const item = pop();
        append(item);
        return true;
      }
      case 'e': {
        for (PickleValue* const item : pop_to_mark()) append(item);
        return true;
      }
      default: return false;
    }
  }
  void append(PickleValue* item) {
    if (top().kind != Kind::kList) fail("appends to a value that is not a list");
    top().items.push_back(item);
  }

  bool run_memo(std::uint8_t opcode) {
    const auto keep = [&](std::uint64_t number) {
      top();
      memo_[number] = stack_.back();
      return true;
    };
    const auto recall = [&](std::uint64_t number) {
      const auto found = memo_.find(number);
      if (found == memo_.end()) fail(fmt::format("recalls value {}, which was not kept", number));
      stack_.push_back(found->second);
      return true;
    };
    switch (opcode) {
      case 0x94: return keep(memo_.size());  // MEMOIZE
      case 'q': return keep(take_number(1));
      case 'r': return keep(take_number(4));
      case 'h': return recall(take_number(1));
      case 'j': return recall(take_number(4));
      default: return false;
    }
  }

  bool run_object(std::uint8_t opcode) {
    switch (opcode) {
      case 0x80: {  // PROTO
        const std::uint8_t protocol = take(1)[0];
        if (protocol < 2 || protocol > 5) fail(fmt::format("begins protocol {}; 2 to 5 can be read", protocol));
        return true;
      }
      case 0x95: take(8); return true;  // FRAME
      case 'c': {                       // GLOBAL
        const std::string module = take_line();
        push({Kind::kName, 0, module + "." + take_line()});
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        const auto names = pop_some(2);
        push({Kind::kName, 0, names[0]->text + "." + names[1]->text});
        return true;
      }
      case 'R': {  // REDUCE
        auto parts = pop_some(2);
        if (parts[0]->kind != Kind::kName) fail("calls a value that is not a name");
        push({Kind::kCall, 0, {}, std::move(parts)});
        return true;
      }
      case 'b': {  // BUILD
        const PickleValue* const state = pop();
        if (top().kind != Kind::kCall) fail("gives a state to a value that has none");
        top().state = state;
        return true;
      }
      default: return false;
    }
  }

  std::span<const std::uint8_t> bytes_;
  const std::string& path_;
  std::size_t next_ = 0, at_ = 0;  // at_: the opcode that is run
  std::deque<PickleValue> values_;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint64_t, PickleValue*> memo_;
};

}  // namespace

Pickle unpickle(std::span<const std::uint8_t> bytes, const std::string& path) {
  return PickleMachine(bytes, path).run();
}

}  // namespace lockstep::data

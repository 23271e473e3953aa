#include <sentencepiece_processor.h>

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/sentencepiece/sentencepiece_library.h"

namespace lockstep::data {

namespace {

void put(TextSink sink, std::string_view text) { sink.append(sink.to, text.data(), text.size()); }

// Calls `work`, and reports a status that is not OK, or an exception.
template <typename Work> bool succeeds(Work&& work, TextSink error) {
  try {
    const sentencepiece::util::Status status = work();
    if (!status.ok()) put(error, status.ToString());
    return status.ok();
  } catch (const std::exception& exception) {
    put(error, exception.what());
    return false;
  }
}

class OpenedModel final : public SentencePieceModel {
 public:
  bool load(std::string_view model, TextSink error) {
    return succeeds([&] { return processor_.LoadFromSerializedProto(model); }, error);
  }

  void close() override { delete this; }
  bool encode(const char* text, std::size_t bytes, IdSink ids, TextSink error) const override {
    std::vector<int> found;
    if (!succeeds([&] { return processor_.Encode(std::string_view(text, bytes), &found); }, error)) return false;
    ids.append(ids.to, found.data(), found.size());
    return true;
  }
  bool decode(const int* ids, std::size_t count, TextSink text, TextSink error) const override {
    std::string decoded;
    const std::vector<int> all(ids, ids + count);
    if (!succeeds([&] { return processor_.Decode(all, &decoded); }, error)) return false;
    put(text, decoded);
    return true;
  }
  int size() const override { return processor_.GetPieceSize(); }
  int id_of(const char* token, std::size_t bytes) const override {
    const int id = processor_.PieceToId(std::string_view(token, bytes));  // of the unknown token, if there is none
    return processor_.IdToPiece(id) == std::string_view(token, bytes) ? id : -1;
  }
  void token_of(int id, TextSink token) const override { put(token, processor_.IdToPiece(id)); }
  bool is_special(int id) const override { return processor_.IsControl(id) || processor_.IsUnknown(id); }
  int begin_id() const override { return processor_.bos_id(); }
  int end_id() const override { return processor_.eos_id(); }

 private:
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

}  // namespace lockstep::data

extern "C" __attribute__((visibility("default"))) lockstep::data::SentencePieceModel* lockstep_sentencepiece_open(
    int version, const char* model, std::size_t bytes, lockstep::data::TextSink error) {
  if (version != lockstep::data::kSentencePieceVersion) {
    lockstep::data::put(error, "the module belongs to another version of Lockstep: install both from one build");
    return nullptr;
  }
  auto* const opened = new lockstep::data::OpenedModel;
  if (opened->load({model, bytes}, error)) return opened;
  opened->close();
  return nullptr;
}

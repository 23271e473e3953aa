// The interface of liblockstep_sentencepiece.so (src/data/sentencepiece).
//
// Program and module may have different versions of operator new, so none frees what the other has allocated: results
// go through functions that copy them.
#pragma once

#include <cstddef>

namespace lockstep::data {

// Appends to a std::string or a std::vector<std::int64_t> of the caller.
struct TextSink {
  void* to;
  void (*append)(void* to, const char* text, std::size_t bytes);
};
struct IdSink {
  void* to;
  void (*append)(void* to, const int* ids, std::size_t count);
};

// An opened model. The const members may be called by several threads at once, and throw nothing.
class SentencePieceModel {
 public:
  virtual void close() = 0;  // the object ends
  // False: SentencePiece reports the failure in `error`.
  virtual bool encode(const char* text, std::size_t bytes, IdSink ids, TextSink error) const = 0;
  virtual bool decode(const int* ids, std::size_t count, TextSink text, TextSink error) const = 0;
  virtual int size() const = 0;
  virtual int id_of(const char* token, std::size_t bytes) const = 0;  // -1: there is no such token
  virtual void token_of(int id, TextSink token) const = 0;            // 0 <= id < size()
  virtual bool is_special(int id) const = 0;                          // a control token, or the unknown one
  virtual int begin_id() const = 0;                                   // -1: the model has none
  virtual int end_id() const = 0;

 protected:
  ~SentencePieceModel() = default;
};

// The module's only symbol. Null: `error` says why.
using SentencePieceOpen = SentencePieceModel* (*)(int version, const char* model, std::size_t bytes, TextSink error);
inline constexpr const char* kSentencePieceOpen = "lockstep_sentencepiece_open";
inline constexpr const char* kSentencePieceFile = "liblockstep_sentencepiece.so";
inline constexpr int kSentencePieceVersion = 1;  // change it with this file

}  // namespace lockstep::data

#include "src/data/loading/sample_error.h"

#include <algorithm>
#include <exception>
#include <string>

#include "lockstep/core/error.h"
#include "src/data/loading/stack.h"

namespace lockstep::data {

namespace {

template <typename Kind> void throw_if(const std::exception& error, const std::string& text) {
  if (dynamic_cast<const Kind*>(&error) != nullptr) std::throw_with_nested(Kind("{}", text));
}

template <typename... Kinds> [[noreturn]] void throw_as_one_of(const std::exception& error, const std::string& text) {
  (throw_if<Kinds>(error, text), ...);
  std::throw_with_nested(Error("{}", text));
}

[[noreturn]] void rethrow_with_prefix(const std::string& about) {
  try {
    throw;
  } catch (const std::exception& error) {
    throw_as_one_of<InvalidArgument, FileError, RendezvousError, MismatchError, TimeoutError, PeerLost>(
        error, fmt::format("DataLoader: {}: {}", about, error.what()));
  } catch (...) {
    std::throw_with_nested(
        Error("DataLoader: {}: an exception was thrown that does not derive from std::exception", about));
  }
}

}  // namespace

void rethrow_for_sample(std::int64_t index, std::int64_t epoch) {
  rethrow_with_prefix(fmt::format("sample {} of epoch {}", index, epoch));
}

void rethrow_for_batch(std::span<const std::int64_t> indices, std::int64_t epoch) {
  constexpr std::size_t kNamed = 16;
  std::string about;
  try {
    throw;
  } catch (const SampleMismatch& mismatch) {
    about = fmt::format("samples {} and {} of epoch {}", indices[mismatch.number()], indices[mismatch.other()], epoch);
  } catch (...) {
    for (const std::int64_t index : indices.first(std::min(indices.size(), kNamed)))
      about += fmt::format("{}{}", about.empty() ? "the batch of samples " : ", ", index);
    about += fmt::format("{} of epoch {}", indices.size() > kNamed ? ", ..." : "", epoch);
  }
  rethrow_with_prefix(about);
}

}  // namespace lockstep::data

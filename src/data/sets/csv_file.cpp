#include <exception>
#include <span>

#include "lockstep/core/error.h"
#include "lockstep/data/csv.h"
#include "src/data/formats/csv.h"
#include "src/data/formats/utf8.h"
#include "src/data/loading/stack.h"

namespace lockstep::data {

namespace {

// Calls `use` with each record. Its exceptions become FileErrors with the line.
template <typename Use>
std::vector<std::string> read_records(const std::string& path, const CsvOptions& options, const Use& use) {
  const std::vector<std::uint8_t> bytes = read_file(path, options.max_bytes);
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  check_utf8(all, path);
  CsvReader reader(without_mark(all), path, options);
  bool has_records = false;
  while (reader.next()) {
    has_records = true;
    try {
      use(reader.record());
    } catch (const std::exception& error) {
      std::throw_with_nested(FileError("{}: line {}: {}", path, reader.line(), error.what()));
    }
  }
  if (!has_records) throw FileError("{}: has no records{}", path, options.header ? " after its header" : "");
  return reader.columns();
}

}  // namespace

CsvFile::CsvFile(const std::string& path, const CsvToSample& to_sample, const CsvOptions& options) {
  if (!to_sample) throw InvalidArgument("CsvFile: {}: the function that makes samples is empty", path);
  Content content;
  content.columns = read_records(path, options, [&](const CsvRecord& record) {
    Sample sample = to_sample(record);
    if (sample.empty()) throw InvalidArgument("the function returned a sample without tensors");
    for (const Tensor& tensor : sample) spec_of(tensor);
    content.samples.push_back(std::move(sample));
  });
  content_ = std::make_shared<const Content>(std::move(content));
}

Sample CsvFile::get(std::int64_t index, std::int64_t) const {
  if (index < 0 || index >= size())
    throw InvalidArgument("CsvFile: sample {} does not exist; the set has {}", index, size());
  Sample sample;
  for (const Tensor& tensor : content_->samples[static_cast<std::size_t>(index)]) sample.push_back(tensor.clone());
  return sample;
}

CsvTable read_csv(const std::string& path, const CsvOptions& options) {
  std::vector<float> values;
  std::size_t columns = 0;
  std::vector<std::string> names = read_records(path, options, [&](const CsvRecord& record) {
    columns = record.size();
    for (std::size_t column = 0; column < columns; ++column) values.push_back(record.number(column));
  });
  const auto records = static_cast<std::int64_t>(values.size() / columns);
  return {std::move(names),
          Tensor::from(std::span<const float>(values), {records, static_cast<std::int64_t>(columns)}, cpu_device())};
}

Tensor float32_row(std::initializer_list<float> values) {
  return Tensor::from(std::span<const float>(values.begin(), values.size()), {static_cast<std::int64_t>(values.size())},
                      cpu_device());
}

}  // namespace lockstep::data

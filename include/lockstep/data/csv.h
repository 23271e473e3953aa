// CSV: lines of fields with a separator (RFC 4180), plain or gzip. Empty lines are skipped, but in a file of one column
// those between other records are records with an empty field.
//
//   const ls::data::CsvFile houses("houses.csv", [](const ls::data::CsvRecord& house) {
//     return ls::data::Sample{ls::data::float32_row({house.number("rooms"), house.number("area")}),
//                             ls::data::scalar(house.number("price"))};
//   });
//   const auto [columns, values] = ls::data::read_csv("numbers.csv");  // all fields are numbers
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/files.h"

#pragma GCC visibility push(default)
namespace lockstep::data {

class [[gnu::visibility("hidden")]] CsvReader;  // src/data/formats/csv.h

struct CsvOptions {
  char separator = ',';  // also ';' and '\t' are common
  bool header = true;    // the first line names the columns; false: columns have numbers only
  std::uint64_t max_bytes = kMaxFileBytes;
};

// The fields of one line, without their quotes. Valid during the call that gets it. Columns are named as in the header,
// or numbered from 0. All functions throw InvalidArgument that names the column if it does not exist, and number() and
// integer() for a field that is not entirely a number of the type (surrounding spaces are allowed). "nan" and "inf" are
// numbers; an empty field is not. A number that is closer to 0 than every float32 is 0.
class CsvRecord {
 public:
  std::size_t size() const { return fields_.size(); }
  std::string_view text(std::string_view column) const { return text(place_of(column)); }
  float number(std::string_view column) const { return number(place_of(column)); }
  std::int64_t integer(std::string_view column) const { return integer(place_of(column)); }
  std::string_view text(std::size_t column) const;
  float number(std::size_t column) const;
  std::int64_t integer(std::size_t column) const;

 private:
  friend class CsvReader;
  CsvRecord(const std::vector<std::string>& names, const std::vector<std::string>& fields)
      : names_(names), fields_(fields) {}
  std::size_t place_of(std::string_view column) const;
  std::string name_of(std::size_t column) const;

  const std::vector<std::string>& names_;
  const std::vector<std::string>& fields_;
};

using CsvToSample = std::function<Sample(const CsvRecord& record)>;

// Sample i is record i. The constructor reads the file and keeps the samples; copies share them.
class CsvFile : public Dataset {
 public:
  // Throws FileError with file and line for text that is not UTF-8, a record with more or fewer fields than the first
  // line, a quote that is not closed, two columns of one name, an exception of `to_sample` (nested in it) and a file
  // without records, and where read_file() does.
  CsvFile(const std::string& path, const CsvToSample& to_sample, const CsvOptions& options = {});
  std::int64_t size() const override { return static_cast<std::int64_t>(content_->samples.size()); }
  Sample get(std::int64_t index, std::int64_t epoch) const override;
  const std::vector<std::string>& columns() const { return content_->columns; }  // empty without a header

 private:
  struct Content {
    std::vector<std::string> columns;
    std::vector<Sample> samples;
  };
  std::shared_ptr<const Content> content_;
};

struct CsvTable {
  std::vector<std::string> columns;  // empty without a header
  Tensor values;                     // (records, columns) float32, on the CPU
};
// Reads a file whose fields are all numbers. Throws FileError where CsvFile() does, and for a field that is not a
// number, with line and column.
CsvTable read_csv(const std::string& path, const CsvOptions& options = {});

// A CPU tensor (N) of these values.
Tensor float32_row(std::initializer_list<float> values);

}  // namespace lockstep::data
#pragma GCC visibility pop

#include "src/train/events/summary_messages.h"

#include <variant>

namespace lockstep::train::events {

namespace {

// Field numbers of tensorboard/compat/proto/*.proto and tensorboard/plugins/hparams/*.proto.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kGraphDef = 4, kSummary = 5;
}
namespace summary_value {
constexpr int kTag = 1, kSimpleValue = 2, kImage = 4, kHisto = 5, kTensor = 8, kMetadata = 9;
}
namespace tensor_proto {
constexpr int kDType = 1, kShape = 2, kStringVal = 8;
constexpr int kShapeDim = 2;
constexpr std::int64_t kFloat = 1, kString = 7;
}  // namespace tensor_proto

Message event_of(const Moment& moment, const Message& value) {
  constexpr int kValue = 1;
  return Message()
      .real(event::kWallTime, moment.time)
      .integer(event::kStep, moment.step)
      .message(event::kSummary, Message().message(kValue, value));
}

// Names the TensorBoard plugin that shows a value.
Message metadata_of(const std::string& plugin, const Message& content = {}) {
  constexpr int kPluginData = 1, kPluginName = 1, kContent = 2;
  return Message().message(kPluginData, Message().text(kPluginName, plugin).text(kContent, content.data()));
}

// The plugin reads the metadata; the value is an empty tensor.
Message hparams_event(const Moment& moment, const std::string& tag, const Message& plugin_data) {
  const Message no_dim = Message().message(tensor_proto::kShapeDim, {});
  return event_of(
      moment,
      Message()
          .text(summary_value::kTag, tag)
          .message(summary_value::kTensor,
                   Message().integer(tensor_proto::kDType, tensor_proto::kFloat).message(tensor_proto::kShape, no_dim))
          .message(summary_value::kMetadata, metadata_of("hparams", plugin_data)));
}

// A google.protobuf.Value.
Message value_of(const Hparam& hparam) {
  constexpr int kNumber = 2, kString = 3, kBool = 4;
  const auto& value = hparam.value();
  if (const bool* truth = std::get_if<bool>(&value)) return Message().integer(kBool, *truth ? 1 : 0, Default::kWritten);
  if (const double* number = std::get_if<double>(&value)) return Message().real(kNumber, *number, Default::kWritten);
  return Message().text(kString, std::get<std::string>(value), Default::kWritten);
}

std::int64_t type_of(const Hparam& hparam) {
  constexpr std::int64_t kString = 1, kBool = 2, kFloat64 = 3;
  const auto& value = hparam.value();
  return std::holds_alternative<bool>(value) ? kBool : std::holds_alternative<double>(value) ? kFloat64 : kString;
}

}  // namespace

Message scalar_event(const Moment& moment, const std::string& tag, double value) {
  return event_of(moment, Message()
                              .text(summary_value::kTag, tag)
                              .real(summary_value::kSimpleValue, static_cast<float>(value), Default::kWritten));
}

Message histogram_event(const Moment& moment, const std::string& tag, const Histogram& histogram) {
  constexpr int kMin = 1, kMax = 2, kNum = 3, kSum = 4, kSumSquares = 5, kBucketLimit = 6, kBucket = 7;
  return event_of(moment, Message()
                              .text(summary_value::kTag, tag)
                              .message(summary_value::kHisto, Message()
                                                                  .real(kMin, histogram.min)
                                                                  .real(kMax, histogram.max)
                                                                  .real(kNum, static_cast<double>(histogram.finite))
                                                                  .real(kSum, histogram.sum)
                                                                  .real(kSumSquares, histogram.sum_of_squares)
                                                                  .reals(kBucketLimit, histogram.limits)
                                                                  .reals(kBucket, histogram.counts)));
}

Message text_event(const Moment& moment, const std::string& tag, const std::string& text) {
  return event_of(moment,
                  Message()
                      .text(summary_value::kTag, tag)
                      .message(summary_value::kTensor, Message()
                                                           .integer(tensor_proto::kDType, tensor_proto::kString)
                                                           .message(tensor_proto::kShape, {})
                                                           .text(tensor_proto::kStringVal, text, Default::kWritten))
                      .message(summary_value::kMetadata, metadata_of("text")));
}

Message graph_event(const Moment& moment, const Message& graph) {
  return Message()
      .real(event::kWallTime, moment.time)
      .integer(event::kStep, moment.step)
      .message(event::kGraphDef, graph);
}

Message image_event(const Moment& moment, const std::string& tag, const Image& image) {
  constexpr int kHeight = 1, kWidth = 2, kColorspace = 3, kEncoded = 4;  // the colour space is the number of channels
  return event_of(moment, Message()
                              .text(summary_value::kTag, tag)
                              .message(summary_value::kImage, Message()
                                                                  .integer(kHeight, image.height)
                                                                  .integer(kWidth, image.width)
                                                                  .integer(kColorspace, image.channels)
                                                                  .text(kEncoded, image.png)));
}

Message experiment_event(const Moment& moment, const std::map<std::string, Hparam>& hparams,
                         const std::map<std::string, double>& metrics) {
  constexpr int kExperimentField = 2, kTimeCreated = 3, kHparamInfos = 4, kMetricInfos = 5;
  Message experiment;
  experiment.real(kTimeCreated, moment.time);
  for (const auto& [name, value] : hparams) {
    constexpr int kName = 1, kType = 4;
    experiment.message(kHparamInfos, Message().text(kName, name).integer(kType, type_of(value)));
  }
  for (const auto& [name, value] : metrics) {
    constexpr int kName = 1, kTag = 2;
    experiment.message(kMetricInfos, Message().message(kName, Message().text(kTag, name)));
  }
  return hparams_event(moment, "_hparams_/experiment", Message().message(kExperimentField, experiment));
}

Message session_start_event(const Moment& moment, const std::map<std::string, Hparam>& hparams, double start) {
  constexpr int kSessionStartInfo = 3, kHparams = 1, kStartTime = 5;
  Message info;
  for (const auto& [name, value] : hparams) {
    constexpr int kKey = 1, kValue = 2;
    info.message(kHparams, Message().text(kKey, name, Default::kWritten).message(kValue, value_of(value)));
  }
  info.real(kStartTime, start);
  return hparams_event(moment, "_hparams_/session_start_info", Message().message(kSessionStartInfo, info));
}

Message session_end_event(const Moment& moment) {
  constexpr int kSessionEndInfo = 4, kStatus = 1, kEndTime = 2;
  constexpr std::int64_t kSuccess = 1;
  const Message info = Message().integer(kStatus, kSuccess).real(kEndTime, moment.time);
  return hparams_event(moment, "_hparams_/session_end_info", Message().message(kSessionEndInfo, info));
}

}  // namespace lockstep::train::events

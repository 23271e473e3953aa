// The messages of event files, one function a kind: Event of event.proto, Summary of summary.proto, and what the
// hparams plugin wants.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/train/summary_writer.h"
#include "src/train/events/histogram.h"
#include "src/train/files/protobuf_encoder.h"

namespace lockstep::events {

struct Moment {
  double time = 0;  // seconds since 1970
  std::int64_t step = 0;
};

Message scalar_event(const Moment& moment, const std::string& tag, double value);
Message histogram_event(const Moment& moment, const std::string& tag, const Histogram& histogram);
Message text_event(const Moment& moment, const std::string& tag, const std::string& text);
Message graph_event(const Moment& moment, const Message& graph);

struct Image {
  std::int64_t height = 0, width = 0, channels = 0;
  std::string png;
};
Message image_event(const Moment& moment, const std::string& tag, const Image& image);

// A session is a run, to the plugin: which hyper-parameters and metrics there are, which values they have here, and
// that it ended well.
Message experiment_event(const Moment& moment, const std::map<std::string, train::Hparam>& hparams,
                         const std::map<std::string, double>& metrics);
Message session_start_event(const Moment& moment, const std::map<std::string, train::Hparam>& hparams, double start);
Message session_end_event(const Moment& moment);

}  // namespace lockstep::events

// The messages of event files, one function per kind: Event of event.proto, Summary of summary.proto, and the data of
// the hparams plugin.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/train/summary_writer.h"
#include "src/train/events/histogram.h"
#include "src/train/files/protobuf_encoder.h"

namespace lockstep::train::events {

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

// The plugin calls a run a session. These are its hyper-parameters and metrics, their values, and its successful end.
Message experiment_event(const Moment& moment, const std::map<std::string, Hparam>& hparams,
                         const std::map<std::string, double>& metrics);
Message session_start_event(const Moment& moment, const std::map<std::string, Hparam>& hparams, double start);
Message session_end_event(const Moment& moment);

}  // namespace lockstep::train::events

// Reads event files with TensorBoard's Python package.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "lockstep/nn/layers.h"
#include "lockstep/train/summary_writer.h"
#include "tests/train/checkpoint_folder.h"

namespace lockstep::train {
namespace {

constexpr const char* kReader = R"(
import io, sys
from PIL import Image
from tensorboard.backend.event_processing import event_accumulator, event_file_loader
from tensorboard.compat.proto import event_pb2
from tensorboard.data_compat import migrate_event
from tensorboard.plugins.hparams import metadata as hparams

file = sys.argv[1]
for raw in event_file_loader.RawEventFileLoader(file).Load():
    event = event_pb2.Event.FromString(raw)
    assert event.SerializeToString(deterministic=True) == raw, event
    for value in migrate_event(event).summary.value:
        if value.tag == 'weights':  # left, right, count of each bucket
            rows = value.tensor.tensor_shape.dim[0].size
            assert rows >= 2, value

everything = {kind: 0 for kind in ('scalars', 'histograms', 'images', 'tensors', 'graph')}
run = event_accumulator.EventAccumulator(file, everything)
run.Reload()
loss = run.Scalars('loss/train')
assert [(s.step, s.value) for s in loss[:2]] == [(0, 2.0), (1, 0.5)], loss
assert loss[2].value != loss[2].value and loss[3].value == float('inf'), loss

histogram = run.Histograms('weights')[0]
assert histogram.step == 5
values = histogram.histogram_value
assert (values.min, values.max, values.num, values.sum, values.sum_squares) == (-1, 2, 4, 4, 10), values
assert sum(values.bucket) == 4 and len(values.bucket) == len(values.bucket_limit), values
equal = run.Histograms('weights/equal')[0].histogram_value
assert list(equal.bucket_limit) == [0, 1, 2] and list(equal.bucket) == [1, 0, 3], equal

image = run.Images('digits')[0]
assert (image.width, image.height, image.step) == (2, 1, 6), image
png = Image.open(io.BytesIO(image.encoded_image_string))
assert (png.mode, png.getpixel((0, 0)), png.getpixel((1, 0))) == ('RGB', (255, 0, 0), (0, 128, 255)), png
grid = Image.open(io.BytesIO(run.Images('grid')[0].encoded_image_string))
assert (grid.mode, grid.size) == ('L', (8, 8)), grid

assert run.Tensors('note')[0].tensor_proto.string_val[0].decode() == '# h\u00e9'
assert run.summary_metadata['note'].plugin_data.plugin_name == 'text'

def content(tag):
    return run.summary_metadata[tag].plugin_data.content
experiment = hparams.parse_experiment_plugin_data(content(hparams.EXPERIMENT_TAG))
assert [info.name for info in experiment.hparam_infos] == ['adam', 'lr', 'net'], experiment
assert [info.name.tag for info in experiment.metric_infos] == ['accuracy'], experiment
session = hparams.parse_session_start_info_plugin_data(content(hparams.SESSION_START_INFO_TAG)).hparams
assert session['adam'].bool_value is True and session['lr'].number_value == 0.25 and session['net'].string_value == 'deep', session
end = hparams.parse_session_end_info_plugin_data(content(hparams.SESSION_END_INFO_TAG))
assert end.status == 1 and end.end_time_secs > 1e9, end
assert run.Scalars('accuracy')[0].value == 0.75

graph = {node.name: node for node in run.Graph().node}
assert list(graph) == ['input', '0', '1', 'output'], list(graph)
assert graph['1'].op == 'ReLU' and list(graph['1'].input) == ['0'] and list(graph['output'].input) == ['1'], graph
assert graph['0'].attr['parameter.weight'].s == b'float32 (3, 2)', graph
assert [d.size for d in graph['0'].attr['_output_shapes'].list.shape[0].dim] == [4, 3], graph
)";

void write_one_of_each(SummaryWriter& writer) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  for (std::int64_t step = 0; const double loss : {2., 0.5, kNan, kInf}) writer.add_scalar("loss/train", loss, step++);
  const float weights[] = {-1, 1, 2, 2}, pixels[] = {1, 0, 0, 0, 0.5f, 1};
  writer.add_histogram("weights", Tensor::from<float>(weights, {4}), 5);
  writer.add_histogram("weights/equal", Tensor::from<float>(weights, {4}), 5, {.buckets = 3});
  writer.add_histogram("none", Tensor::zeros({0}), 5);
  writer.add_image("digits", Tensor::from<float>(pixels, {1, 2, 3}), 6);
  writer.add_images("grid", Tensor::zeros({3, 4, 4, 1}), 6, {.columns = 2});
  writer.add_text("note", "# h\xc3\xa9", 0);
  writer.add_hparams({{"lr", 0.25}, {"net", "deep"}, {"adam", true}}, {{"accuracy", 0.75}});
  nn::Sequential net;
  net.append<nn::Linear>(2, 3);
  net.append<nn::ReLU>();
  writer.add_graph(net, {4, 2});
  writer.close();
}

TEST(EventFiles, AreReadByPythonsTensorBoard) {
  const char* python = std::getenv("LOCKSTEP_TEST_PYTHON");
  if (python == nullptr || *python == '\0') GTEST_SKIP() << "LOCKSTEP_TEST_PYTHON names no python with tensorboard";
  if (std::system(fmt::format("{} -c 'import tensorboard' 2>/dev/null", python).c_str()) != 0)
    GTEST_SKIP() << python << " has no package tensorboard: .ci/requirements.txt names it";
  const testing::Folder folder;
  SummaryWriter writer(folder.path() + "/run");
  write_one_of_each(writer);
  const std::string script = folder.path() + "/read.py";
  std::ofstream(script) << kReader;
  EXPECT_EQ(std::system(fmt::format("{} {} {}", python, script, writer.file()).c_str()), 0);
}

}  // namespace
}  // namespace lockstep::train

#include "src/models/onnx/converters.h"

#include <algorithm>

namespace lockstep::onnx {

namespace {

constexpr const char* kLoss = "a loss belongs to training: give the file the module that computes the scores";
constexpr const char* kSeveralDevices = "a module on several devices is not one graph: build it on one device";

// "unary" stands for all functions of elementwise.h with one tensor (UnaryFunction).
constexpr OnnxOperator kOperators[] = {
    {"unary", convert_unary},
    {"relu", convert_unary},
    {"add", convert_binary},
    {"sub", convert_binary},
    {"mul", convert_binary},
    {"div", convert_binary},
    {"pow", convert_binary},
    {"maximum", convert_binary},
    {"minimum", convert_binary},
    {"bias_add", convert_binary},
    {"scale", convert_scaling},
    {"scale_by", convert_scaling, 1},
    {"compare", convert_selection},
    {"where", convert_selection, 1},
    {"length_mask", convert_length_mask},
    {"reshape", convert_shape},
    {"broadcast_to", convert_shape},
    {"permute", convert_copy},
    {"slice", convert_copy},
    {"concat", convert_copy},
    {"pad", convert_copy},
    {"flip", convert_copy},
    {"roll", convert_copy},
    {"embedding", convert_indexing, 1},
    {"gather", convert_indexing, 1},
    {"index_select", convert_indexing, 1},
    {"scatter", convert_indexing, 1},
    {"scatter_add", convert_indexing, 1},
    {"sum", convert_reduction},
    {"mean", convert_reduction},
    {"logsumexp", convert_reduction},
    {"norm", convert_reduction},
    {"prod", convert_reduction},
    {"var", convert_statistics},
    {"stddev", convert_statistics},
    {"max", convert_order, 0, true},
    {"min", convert_order, 0, true},
    {"sort", convert_order, 0, true},
    {"topk", convert_order, 0, true},
    {"argsort", convert_order, 0, true},
    {"cumsum", convert_order},
    {"matmul", convert_product},
    {"linear", convert_product},
    {"feed_forward", convert_product},
    {"softmax", convert_softmax},
    {"log_softmax", convert_softmax},
    {"layer_norm", convert_norm},
    {"rms_norm", convert_norm},
    {"group_norm", convert_norm},
    {"batch_norm", convert_batch_norm, 5},
    {"conv2d", convert_image_layer},
    {"conv1d", convert_image_layer},
    {"max_pool2d", convert_image_layer},
    {"avg_pool2d", convert_image_layer},
    {"local_response_norm", convert_image_layer},
    {"conv_transpose2d", convert_transposed_convolution},
    {"conv_transpose1d", convert_transposed_convolution},
    {"upsample", convert_resampling},
    {"adaptive_avg_pool2d", convert_resampling},
    {"adaptive_avg_pool1d", convert_resampling},
    {"lstm_layer", convert_recurrent},
    {"gru_layer", convert_recurrent},
    {"scaled_dot_product_attention", convert_attention},
    {"cast", nullptr, 0, false, "it converts to a 16-bit type: files have float32"},
    {"dropout", nullptr, 0, false,
     "it belongs to training, and the module calls it in evaluation: pass is_training() to dropout()"},
    {"checkpoint", nullptr, 0, false, "it belongs to training: call it outside of an EnableGrad"},
    {"to_device", nullptr, 0, false, kSeveralDevices},
    {"parallel_apply", nullptr, 0, false, kSeveralDevices},
    {"gather_outputs", nullptr, 0, false, kSeveralDevices},
    {"softmax_cross_entropy", nullptr, 0, false, kLoss},
    {"nll_loss", nullptr, 0, false, kLoss},
    {"mse_loss", nullptr, 0, false, kLoss},
    {"l1_loss", nullptr, 0, false, kLoss},
    {"binary_cross_entropy_with_logits", nullptr, 0, false, kLoss},
    {"ctc_loss", nullptr, 0, false, kLoss},
    {"l2_loss", nullptr, 0, false, kLoss},
};

}  // namespace

std::span<const OnnxOperator> onnx_operators() { return kOperators; }

const OnnxOperator* operator_of(const TracedStep& step) {
  const std::string_view name = step.first.count("unary") != 0 ? "unary" : std::string_view(step.op);
  const auto* const row = std::find_if(std::begin(kOperators), std::end(kOperators),
                                       [name](const OnnxOperator& each) { return each.name == name; });
  return row == std::end(kOperators) ? nullptr : row;
}

}  // namespace lockstep::onnx

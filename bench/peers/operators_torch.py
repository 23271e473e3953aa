"""Times PyTorch's operators on the rows of bench/operators, one thread, on the CPU.

operators_torch.py --rounds 9 --only pool,linear

Operators write to a given tensor (out=) if PyTorch supports that; gradients are computed by the operator's own function (aten's
*_backward), if there is one. Images are channels last, as ours are. Prints the least CPU time of each row's rounds, one JSON line per row.
Rows without an operator in PyTorch are left out: kernels/cases has all rows.
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F

aten = torch.ops.aten
ELEMENTS, BATCH = 4 << 20, 128
COLUMNS = 256
ROWS = {}


def row(name):
    """Registers a function that prepares a row and returns the call to time."""

    def register(prepare):
        ROWS[name] = prepare
        return prepare

    return register


def rand(*shape):
    return torch.rand(*shape) * 2 - 1


def images(*shape):
    return rand(*shape).contiguous(memory_format=torch.channels_last)


def large(count=3):
    return [rand(ELEMENTS) for _ in range(count)]


# --- functions of one or two tensors, of large arrays ---------------------------------------------------------------------------------


def add_large(name, call, count=2, positive=False):
    """`call` with `count` arrays, the last of which receives the result. `positive`: PyTorch is far slower if the result is NaN."""

    def prepare():
        arrays = [array.abs() if positive else array for array in large(count)]
        return lambda: call(*arrays)

    ROWS[f"{name} 4.0 M"] = prepare


add_large("fill", lambda y: y.fill_(1.5), 1)
add_large("add", lambda a, b, y: torch.add(a, b, out=y), 3)
add_large("accumulate", lambda x, y: y.add_(x))
add_large("scale", lambda x, y: torch.mul(x, 0.5, out=y))
add_large("relu", lambda x, y: aten.relu.out(x, out=y))
add_large("relu backward", lambda x, g, y: aten.threshold_backward.grad_input(g, x, 0, grad_input=y), 3)
add_large("a + b", lambda a, b, y: torch.add(a, b, out=y), 3)
add_large("a - b", lambda a, b, y: torch.sub(a, b, out=y), 3)
add_large("a * b", lambda a, b, y: torch.mul(a, b, out=y), 3)
add_large("a / b", lambda a, b, y: torch.div(a, b, out=y), 3)
add_large("a ^ b", lambda a, b, y: torch.pow(a, b, out=y), 3, positive=True)
add_large("gelu", lambda x, y: aten.gelu.out(x, out=y))
add_large("gelu tanh", lambda x, y: aten.gelu.out(x, approximate="tanh", out=y))
add_large("silu", lambda x, y: aten.silu.out(x, out=y))
add_large("tanh", lambda x, y: torch.tanh(x, out=y))
add_large("sigmoid", lambda x, y: torch.sigmoid(x, out=y))
add_large("leaky relu", lambda x, y: aten.leaky_relu.out(x, 0.01, out=y))
add_large("exp", lambda x, y: torch.exp(x, out=y))
add_large("log", lambda x, y: torch.log(x, out=y), positive=True)
add_large("sqrt", lambda x, y: torch.sqrt(x, out=y), positive=True)
add_large("square", lambda x, y: torch.pow(x, 2, out=y))
add_large("cube", lambda x, y: torch.pow(x, 3, out=y))
add_large("power", lambda x, y: torch.pow(x, -1.5, out=y), positive=True)
add_large("abs", lambda x, y: torch.abs(x, out=y))
add_large("reciprocal", lambda x, y: torch.reciprocal(x, out=y))
add_large("add constant", lambda x, y: torch.add(x, -0.3, out=y))
add_large("sin", lambda x, y: torch.sin(x, out=y))
add_large("cos", lambda x, y: torch.cos(x, out=y))
add_large("erf", lambda x, y: torch.erf(x, out=y))
add_large("log1p", lambda x, y: torch.log1p(x, out=y))
add_large("expm1", lambda x, y: torch.expm1(x, out=y))
add_large("rsqrt", lambda x, y: torch.rsqrt(x, out=y), positive=True)
add_large("softplus", lambda x, y: aten.softplus.out(x, 0.8, 20, out=y))
add_large("elu", lambda x, y: aten.elu.out(x, 0.7, out=y))
add_large("hardswish", lambda x, y: aten.hardswish.out(x, out=y))
add_large("hardsigmoid", lambda x, y: aten.hardsigmoid.out(x, out=y))
add_large("mish", lambda x, y: aten.mish.out(x, out=y))
add_large("clamp", lambda x, y: torch.clamp(x, -0.5, 0.25, out=y))
add_large("sign", lambda x, y: torch.sign(x, out=y))
add_large("floor", lambda x, y: torch.floor(x, out=y))
add_large("ceil", lambda x, y: torch.ceil(x, out=y))
add_large("round", lambda x, y: torch.round(x, out=y))
add_large("maximum", lambda a, b, y: torch.maximum(a, b, out=y), 3)
add_large("minimum", lambda a, b, y: torch.minimum(a, b, out=y), 3)
add_large("softplus backward", lambda x, g, y: aten.softplus_backward.grad_input(g, x, 0.8, 20, grad_input=y), 3)
add_large("elu backward", lambda x, g, y: aten.elu_backward.grad_input(g, 0.7, 1, 1, False, x, grad_input=y), 3)
add_large("hardsigmoid backward", lambda x, g, y: aten.hardsigmoid_backward.grad_input(g, x, grad_input=y), 3)
add_large("gelu backward", lambda x, g, y: aten.gelu_backward.grad_input(g, x, grad_input=y), 3)
add_large("gelu tanh backward", lambda x, g, y: aten.gelu_backward.grad_input(g, x, approximate="tanh", grad_input=y), 3)
add_large("silu backward", lambda x, g, y: aten.silu_backward.grad_input(g, x, grad_input=y), 3)
add_large("tanh backward", lambda x, g, y: aten.tanh_backward.grad_input(g, x, grad_input=y), 3)
add_large("sigmoid backward", lambda x, g, y: aten.sigmoid_backward.grad_input(g, x, grad_input=y), 3)
add_large("leaky relu backward", lambda x, g, y: aten.leaky_relu_backward.grad_input(g, x, 0.01, False, grad_input=y), 3)
add_large("dropout", lambda x: F.dropout(x, 0.1, training=True), 1)
add_large("mse loss", lambda x, t: F.mse_loss(x, t))
add_large("l1 loss", lambda x, t: F.l1_loss(x, t))
add_large("binary cross entropy", lambda x, t: F.binary_cross_entropy_with_logits(x, t))
add_large("sum of all", lambda x: torch.sum(x), 1)
add_large("largest of all", lambda x: torch.max(x, 0), 1)  # with its place
add_large("smallest of all", lambda x: torch.min(x, 0), 1)
add_large("product of all", lambda x: torch.prod(x), 1)
add_large("sum of magnitudes", lambda x: torch.linalg.vector_norm(x, 1), 1)
add_large("sum of squares", lambda x: torch.linalg.vector_norm(x, 2), 1)
add_large("cumsum", lambda x, y: torch.cumsum(x, 0, out=y))
add_large("sort", lambda x: torch.sort(x), 1)
add_large("largest 100", lambda x: torch.topk(x, 100), 1)
add_large("gradient norm", lambda x: torch.linalg.vector_norm(x), 1)


def add_rows(name, call, count=1):
    def prepare():
        arrays = [rand(ELEMENTS // COLUMNS, COLUMNS) for _ in range(count)]
        return lambda: call(*arrays)

    ROWS[f"{name} 4.0 M"] = prepare


def with_column(x, y):
    torch.mul(x, x[:, :1], out=y)


add_rows("softmax", lambda x, y: aten._softmax.out(x, 1, False, out=y), 2)
add_rows("log softmax", lambda x, y: aten._log_softmax.out(x, 1, False, out=y), 2)
add_rows("softmax backward", lambda y, g, x: aten._softmax_backward_data.out(g, y, 1, torch.float32, grad_input=x), 3)
add_rows("sums of rows of 256", lambda x: torch.sum(x, 1))
add_rows("sums of 256 columns", lambda x: torch.sum(x, 0))
add_rows("largest of rows of 256", lambda x: torch.max(x, 1))
add_rows("largest of columns", lambda x: torch.max(x, 0))
add_rows("smallest of rows of 256", lambda x: torch.min(x, 1))
add_rows("smallest of columns", lambda x: torch.min(x, 0))
add_rows("products of rows of 256", lambda x: torch.prod(x, 1))
add_rows("products of columns", lambda x: torch.prod(x, 0))
add_rows("sum of magnitudes, rows of 256", lambda x: torch.linalg.vector_norm(x, 1, 1))
add_rows("sum of magnitudes, 256 columns", lambda x: torch.linalg.vector_norm(x, 1, 0))
add_rows("sum of squares, rows of 256", lambda x: torch.linalg.vector_norm(x, 2, 1))
add_rows("sum of squares, 256 columns", lambda x: torch.linalg.vector_norm(x, 2, 0))
add_rows("cumsum of rows of 256", lambda x, y: torch.cumsum(x, 1, out=y), 2)
add_rows("cumsum of columns", lambda x, y: torch.cumsum(x, 0, out=y), 2)
add_rows("sort rows of 256", lambda x: torch.sort(x, 1))
add_rows("sort columns", lambda x: torch.sort(x, 0))
add_rows("largest 10 of rows of 256", lambda x: torch.topk(x, 10, 1))
add_rows("a * b, b a row of 256", lambda x, y: torch.mul(x, x[0], out=y), 2)
add_rows("a * b, b a column", with_column, 2)


@row("bias 4.0 M")
def bias():
    x, b = rand(ELEMENTS // 64, 64), rand(64)
    return lambda: x.add_(b)


@row("scale by 4.0 M")
def scale_by():
    (x, y), factor = large(2), torch.tensor(0.5)
    return lambda: torch.mul(x, factor, out=y)


@row("where 4.0 M")
def where():
    a, b, y = large()
    condition = a > b
    return lambda: torch.where(condition, a, b, out=y)


@row("convert to bfloat16 4.0 M")
def convert():
    x = rand(ELEMENTS)
    y = x.bfloat16()
    return lambda: y.copy_(x)


@row("transpose to rows of 1024 4.0 M")
def transpose():
    x, y = rand(1024, ELEMENTS // 1024), rand(ELEMENTS // 1024, 1024)
    return lambda: y.copy_(x.t())


@row("heads of 64, transposed 4.0 M")
def heads():
    x = rand(ELEMENTS // 65536, 128, 8, 64)
    y = x.transpose(1, 2).contiguous()
    return lambda: y.copy_(x.transpose(1, 2))


@row("embedding 4.0 M")
def embedding():
    weight, text = rand(65, COLUMNS), torch.randint(0, 65, (ELEMENTS // COLUMNS,))
    return lambda: F.embedding(text, weight)


@row("embedding backward 4.0 M")
def embedding_backward():
    gradient, text = rand(ELEMENTS // COLUMNS, COLUMNS), torch.randint(0, 65, (ELEMENTS // COLUMNS,))
    return lambda: aten.embedding_dense_backward(gradient, text, 65, -1, False)


# --- losses ---------------------------------------------------------------------------------------------------------------------------


def gradient_of(loss):
    def prepare():
        x, target = rand(ELEMENTS).requires_grad_(), torch.rand(ELEMENTS)
        value = loss(x, target)
        return lambda: torch.autograd.grad(value, x, retain_graph=True)

    return prepare


ROWS["mse loss backward 4.0 M"] = gradient_of(F.mse_loss)
ROWS["l1 loss backward 4.0 M"] = gradient_of(F.l1_loss)
ROWS["binary cross entropy backward 4.0 M"] = gradient_of(F.binary_cross_entropy_with_logits)


def cross_entropy_of(batch, classes):
    def prepare():
        logits, labels = rand(batch, classes).requires_grad_(), torch.randint(0, classes, (batch,))
        return lambda: torch.autograd.grad(F.cross_entropy(logits, labels), logits)

    return prepare


ROWS["cross entropy"] = cross_entropy_of(BATCH, 10)
ROWS["cross entropy, 50257 classes"] = cross_entropy_of(64, 50257)


# --- convolutions and linear layers ---------------------------------------------------------------------------------------------------


def add_conv(name, size, inside, outside, kernel, groups=1):
    pad = kernel // 2
    settings = ([1, 1], [pad, pad], [1, 1], False, [0, 0], groups)

    def operands():
        weight = rand(outside, inside // groups, kernel, kernel).contiguous(memory_format=torch.channels_last)
        return images(BATCH, inside, size, size), weight, rand(outside), images(BATCH, outside, size, size)

    def forward():
        x, weight, bias_values, _ = operands()
        return lambda: F.conv2d(x, weight, bias_values, padding=pad, groups=groups).relu_()

    def backward(mask, bias_sizes):
        x, weight, _, gradient = operands()
        return lambda: aten.convolution_backward(gradient, x, weight, bias_sizes, *settings, mask)

    ROWS[f"{name} forward + relu"] = forward
    ROWS[f"{name} backward data"] = lambda: backward([True, False, False], None)
    ROWS[f"{name} backward weights"] = lambda: backward([False, True, True], [outside])


add_conv("conv1", 24, 3, 64, 5)
add_conv("conv2", 12, 64, 64, 5)
add_conv("depthwise 3x3", 14, 128, 128, 3, 128)
add_conv("32 groups 3x3", 14, 128, 128, 3, 32)


def add_linear(name, batch, inside, outside):
    def forward():
        x, weight, b = rand(batch, inside), rand(outside, inside), rand(outside)
        return lambda: F.linear(x, weight, b)

    def backward_data():
        gradient, weight, out = rand(batch, outside), rand(outside, inside), rand(batch, inside)
        return lambda: torch.mm(gradient, weight, out=out)

    def backward_weights():
        gradient, x, out = rand(batch, outside), rand(batch, inside), rand(outside, inside)
        return lambda: torch.mm(gradient.t(), x, out=out)

    def backward_bias():
        gradient = rand(batch, outside)
        return lambda: gradient.sum(0)

    ROWS[f"{name} forward"], ROWS[f"{name} backward data"] = forward, backward_data
    ROWS[f"{name} backward weights"], ROWS[f"{name} backward bias"] = backward_weights, backward_bias


add_linear("linear 1024", 1024, 1024, 1024)
add_linear("local3", BATCH, 2304, 384)
add_linear("local4", BATCH, 384, 192)
add_linear("logits", BATCH, 192, 10)
add_linear("mlp layer, batch 64", 64, 2048, 2048)


@row("linear and gelu forward")
def linear_gelu():
    x, weight, bias = rand(256, 768), rand(3072, 768), rand(3072)
    return lambda: F.gelu(F.linear(x, weight, bias), approximate="tanh")


@row("linear and gelu backward data")
def linear_gelu_backward():
    y_grad, weight, before = rand(256, 768), rand(768, 3072), rand(256, 3072)
    return lambda: aten.gelu_backward(y_grad @ weight, before, approximate="tanh")


@row("matmul 16 x 256 x 256 x 256")
def matmul():
    a, b, y = (rand(16, 256, 256) for _ in range(3))
    return lambda: torch.bmm(a, b.transpose(1, 2), out=y)


# --- pooling and normalisation --------------------------------------------------------------------------------------------------------


def add_pools(name, size):
    def forward():
        x = images(BATCH, 64, size, size)
        return lambda: aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])

    def backward():
        x = images(BATCH, 64, size, size)
        y, places = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
        gradient = images(*y.shape)
        return lambda: aten.max_pool2d_with_indices_backward(gradient, x, [3, 3], [2, 2], [1, 1], [1, 1], False, places)

    ROWS[f"{name} forward"], ROWS[f"{name} backward"] = forward, backward


add_pools("pool1", 24)
add_pools("pool2", 12)


@row("average pool 3/2 forward")
def average_pool():
    x = images(BATCH, 64, 24, 24)
    return lambda: F.avg_pool2d(x, 3, 2, 1)


@row("average pool 3/2 backward")
def average_pool_backward():
    x, gradient = images(BATCH, 64, 24, 24), images(BATCH, 64, 12, 12)
    return lambda: aten.avg_pool2d_backward(gradient, x, [3, 3], [2, 2], [1, 1], False, True, None)


@row("global average pool forward")
def global_pool():
    x = images(BATCH, 512, 8, 8)
    return lambda: x.mean((2, 3))


def lrn_operands():
    x = images(BATCH, 64, 12, 12)
    return x, lambda value: F.local_response_norm(value, 9, alpha=0.001, beta=0.75, k=1.0)


@row("lrn forward")
def lrn():
    x, normalise = lrn_operands()
    return lambda: normalise(x)


@row("lrn backward")
def lrn_backward():
    x, normalise = lrn_operands()
    y = normalise(x.requires_grad_())
    gradient = images(*y.shape)
    return lambda: torch.autograd.grad(y, x, gradient, retain_graph=True)


def add_batch_norm(channels):
    def operands():
        return images(ELEMENTS // channels // 256, channels, 16, 16), rand(channels), rand(channels)

    def backward():
        x, weight, b = operands()
        y, mean, deviation = aten.native_batch_norm(x, weight, b, None, None, True, 0.1, 1e-5)
        gradient = torch.rand_like(y)

        def both():
            after_relu = aten.threshold_backward(gradient, y, 0)
            return aten.native_batch_norm_backward(after_relu, x, weight, None, None, mean, deviation, True, 1e-5, [True, True, True])

        return both

    ROWS[f"batch norm + relu backward, {channels} channels"] = backward


add_batch_norm(16)
add_batch_norm(64)


@row("batch norm statistics")
def batch_norm_statistics():
    x = rand(ELEMENTS // 64, 64)
    return lambda: torch.var_mean(x, 0, correction=0)


def layer_norm_operands():
    return rand(ELEMENTS // COLUMNS, COLUMNS), rand(COLUMNS), rand(COLUMNS)


@row("layer norm 4.0 M")
def layer_norm():
    x, weight, b = layer_norm_operands()
    return lambda: aten.native_layer_norm(x, [COLUMNS], weight, b, 1e-5)


@row("add and layer norm 4.0 M")
def add_layer_norm():
    x, weight, b = layer_norm_operands()
    addend, y = torch.rand_like(x), torch.empty_like(x)
    return lambda: aten.native_layer_norm(torch.add(x, addend, out=y), [COLUMNS], weight, b, 1e-5)


@row("layer norm backward 4.0 M")
def layer_norm_backward():
    x, weight, b = layer_norm_operands()
    y, mean, deviation = aten.native_layer_norm(x, [COLUMNS], weight, b, 1e-5)
    gradient = torch.rand_like(y)
    return lambda: aten.native_layer_norm_backward(gradient, x, [COLUMNS], mean, deviation, weight, b, [True, True, True])


def group_norm_operands():
    return images(ELEMENTS // 16384, 64, 16, 16), rand(64), rand(64)


@row("group norm 4.0 M")
def group_norm():
    x, weight, b = group_norm_operands()
    return lambda: F.group_norm(x, 8, weight, b)


@row("group norm backward 4.0 M")
def group_norm_backward():
    x, weight, b = group_norm_operands()
    operands = [tensor.requires_grad_() for tensor in (x, weight, b)]
    y = F.group_norm(x, 8, weight, b)
    gradient = torch.rand_like(y)
    return lambda: torch.autograd.grad(y, operands, gradient, retain_graph=True)


def attention_operands():
    return [rand(8, 128, 4, 64).transpose(1, 2) for _ in range(3)]


@row("attention forward")
def attention():
    q, k, v = attention_operands()
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


@row("attention backward")
def attention_backward():
    operands = [tensor.requires_grad_() for tensor in attention_operands()]
    y = F.scaled_dot_product_attention(*operands, is_causal=True)
    gradient = torch.rand_like(y)
    return lambda: torch.autograd.grad(y, operands, gradient, retain_graph=True)


# --- optimizers -----------------------------------------------------------------------------------------------------------------------


def add_recurrent(name, kind):
    """A layer over 50 steps of 256 values; ours is the same calls of kernels."""
    title = f"{name} {{}}, {BATCH // 2} x 50 steps of 256"

    def operands():
        layer, x = kind(256, 256, batch_first=True), rand(BATCH // 2, 50, 256).requires_grad_()
        return layer, x

    def forward():
        layer, x = operands()
        return lambda: layer(x)

    def backward():
        layer, x = operands()
        y, _ = layer(x)
        gradient, wanted = rand(*y.shape), [x, *layer.parameters()]
        return lambda: torch.autograd.grad(y, wanted, gradient, retain_graph=True)

    ROWS[title.format("forward")] = forward
    ROWS[title.format("backward")] = backward


add_recurrent("lstm", torch.nn.LSTM)
add_recurrent("gru", torch.nn.GRU)


def add_resample(name, call):
    def forward():
        x = images(BATCH // 8, 64, 28, 28)
        return lambda: call(x)

    def backward():
        x = images(BATCH // 8, 64, 28, 28).requires_grad_()
        y = call(x)
        gradient = torch.rand_like(y)
        return lambda: torch.autograd.grad(y, x, gradient, retain_graph=True)

    ROWS[name + " forward"] = forward
    ROWS[name + " backward"] = backward


add_resample("upsample nearest", lambda x: F.interpolate(x, scale_factor=2))
add_resample("upsample bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"))
add_resample("adaptive average pool", lambda x: F.adaptive_avg_pool2d(x, 5))


def add_optimizer(name, make):
    def prepare():
        parameter = torch.nn.Parameter(rand(ELEMENTS))
        parameter.grad = rand(ELEMENTS)
        return make([parameter]).step

    ROWS[f"{name} 4.0 M"] = prepare


add_optimizer("sgd", lambda p: torch.optim.SGD(p, lr=1e-3, fused=True))
add_optimizer("sgd momentum", lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True))
add_optimizer("adam", lambda p: torch.optim.Adam(p, fused=True))
add_optimizer("adamw", lambda p: torch.optim.AdamW(p, fused=True))
add_optimizer("nadam", torch.optim.NAdam)
add_optimizer("rmsprop", torch.optim.RMSprop)
add_optimizer("adagrad", lambda p: torch.optim.Adagrad(p, fused=True))


def least_us(call, rounds):
    """The times of the rounds, after two that are not counted, because PyTorch chooses its algorithms in the first."""
    times = []
    for _ in range(rounds + 2):
        start = time.process_time_ns()
        call()
        times.append(time.process_time_ns() - start)
    return min(times[2:]) / 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts = [part for part in flags.only.split(",") if part]
    for name, prepare in ROWS.items():
        if not parts or any(part in name for part in parts):
            print(json.dumps({"peer": "pytorch-" + torch.__version__, "operator": name, "us": least_us(prepare(), flags.rounds)}), flush=True)


if __name__ == "__main__":
    main()

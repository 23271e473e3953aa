"""Layers of PyTorch with random weights: writes what they compute, for tests/nn/torch_layers_test.cpp.

torch_layers.py make FOLDER    writes FOLDER/<case>.safetensors

Each file has the parameters ("p.<name>") and inputs ("x.<number>"), the outputs ("y.<number>"), and the gradients ("gp.<name>",
"gx.<number>") of the sum of the outputs times "w.<number>". Images are written as (N, H, W, C), sequences of convolutions as (N, L, C).
"""

import os
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

CASES = {}


def case(name):
    def register(make):
        CASES[name] = make
        return make

    return register


def leaf(*shape):
    return (torch.rand(*shape) * 2 - 1).requires_grad_()


def channels_last(x):
    return x.movedim(1, -1) if x.dim() > 2 else x


def written(module, inputs, outputs, images=False):
    place = channels_last if images else lambda x: x
    tensors, loss = {}, 0
    for i, y in enumerate(outputs):
        weight = torch.rand_like(y) * 2 - 1
        loss = loss + (y * weight).sum()
        tensors[f"y.{i}"], tensors[f"w.{i}"] = place(y), place(weight)
    loss.backward()
    for i, x in enumerate(inputs):
        tensors[f"x.{i}"], tensors[f"gx.{i}"] = place(x), place(x.grad)
    for key, parameter in module.named_parameters():
        tensors["p." + key], tensors["gp." + key] = parameter, parameter.grad
    return {key: value.detach().contiguous().clone() for key, value in tensors.items()}


def recurrent(module, lengths, has_state, layers):
    x = leaf(4, 7, 5)
    states = [leaf(layers, 4, 6) for _ in range(2 if isinstance(module, nn.LSTM) else 1)] if has_state else []
    given = (tuple(states) if len(states) == 2 else states[0]) if states else None
    steps = pack_padded_sequence(x, torch.tensor(lengths), True, enforce_sorted=False) if lengths else x
    y, last = module(steps, given)
    if lengths:
        y, _ = pad_packed_sequence(y, True, total_length=7)
    return written(module, [x, *states], [y, *(last if isinstance(last, tuple) else [last])])


LENGTHS = [3, 7, 1, 5]
for kind in (nn.LSTM, nn.GRU):
    short = kind.__name__.lower()
    CASES[short] = lambda kind=kind: recurrent(kind(5, 6, batch_first=True), None, False, 1)
    CASES[short + "_deep"] = lambda kind=kind: recurrent(
        kind(5, 6, num_layers=2, bidirectional=True, batch_first=True), None, True, 4)
    CASES[short + "_lengths"] = lambda kind=kind: recurrent(
        kind(5, 6, num_layers=2, bidirectional=True, batch_first=True), LENGTHS, True, 4)
    CASES[short + "_no_bias"] = lambda kind=kind: recurrent(kind(5, 6, bias=False, batch_first=True), LENGTHS, False, 1)


def of_images(module, *shape):
    x = leaf(*shape)
    return written(module, [x], [module(x)], images=True)


IMAGES = {
    "conv2d_dilated": (lambda: nn.Conv2d(4, 6, (3, 2), (2, 1), (2, 3), (2, 3), groups=2), (2, 4, 9, 8)),
    "conv1d_dilated": (lambda: nn.Conv1d(3, 5, 3, padding=4, dilation=4), (2, 3, 11)),
    "conv3d": (lambda: nn.Conv3d(4, 6, (2, 3, 2), (2, 1, 3), (1, 2, 0), (3, 1, 2), groups=2), (2, 4, 7, 5, 8)),
    "conv3d_plain": (lambda: nn.Conv3d(3, 5, 3, padding=1, bias=False), (2, 3, 4, 5, 6)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(4, 6, (3, 4), (2, 3), (1, 2), (1, 2)), (2, 4, 5, 4)),
    "conv_transpose2d_groups": (lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2, bias=False), (2, 4, 5, 4)),
    "conv_transpose2d_dilated": (lambda: nn.ConvTranspose2d(3, 2, 3, 1, 0, 0, dilation=2), (1, 3, 4, 6)),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(4, 3, 5, 3, 1, 2), (2, 4, 6)),
    "upsample_nearest": (lambda: nn.Upsample(size=(7, 5)), (2, 3, 4, 6)),
    "upsample_scale": (lambda: nn.Upsample(scale_factor=2.3), (2, 3, 4, 6)),
    "upsample_bilinear": (lambda: nn.Upsample(size=(7, 15), mode="bilinear"), (2, 3, 4, 6)),
    "upsample_bilinear_scale": (lambda: nn.Upsample(scale_factor=1.7, mode="bilinear"), (1, 2, 5, 6)),
    "upsample_corners": (lambda: nn.Upsample(size=(9, 3), mode="bilinear", align_corners=True), (2, 3, 4, 6)),
    "adaptive_avg_pool2d": (lambda: nn.AdaptiveAvgPool2d((3, 4)), (2, 3, 7, 9)),
    "adaptive_avg_pool2d_even": (lambda: nn.AdaptiveAvgPool2d((2, 3)), (2, 3, 8, 9)),
    "adaptive_max_pool2d": (lambda: nn.AdaptiveMaxPool2d((3, 4)), (2, 3, 7, 9)),
    "adaptive_avg_pool1d": (lambda: nn.AdaptiveAvgPool1d(4), (2, 3, 7)),
    "adaptive_max_pool1d": (lambda: nn.AdaptiveMaxPool1d(9), (2, 3, 7)),
    "reflection_pad2d": (lambda: nn.ReflectionPad2d((1, 2, 3, 0)), (2, 3, 4, 5)),
    "replication_pad2d": (lambda: nn.ReplicationPad2d((1, 2, 3, 0)), (2, 3, 4, 5)),
    "zero_pad2d": (lambda: nn.ZeroPad2d((1, 2, 3, 0)), (2, 3, 4, 5)),
    "reflection_pad1d": (lambda: nn.ReflectionPad1d((4, 1)), (2, 3, 5)),
    "replication_pad1d": (lambda: nn.ReplicationPad1d((6, 1)), (2, 3, 5)),
    "instance_norm2d": (lambda: nn.InstanceNorm2d(3), (2, 3, 4, 5)),
    "instance_norm1d": (lambda: nn.InstanceNorm1d(3, affine=True), (2, 3, 9)),
}
for name, (make, shape) in IMAGES.items():
    CASES[name] = lambda make=make, shape=shape: of_images(make(), *shape)

WIDTH, HEADS, T, S = 12, 3, 6, 5


def padded(lengths, steps):
    return torch.arange(steps)[None, :] >= torch.tensor(lengths)[:, None]


def without_zeros(module):
    """Biases and norms begin at 0 and 1, which would hide mistakes."""
    for parameter in module.parameters():
        with torch.no_grad():
            parameter.add_((torch.rand_like(parameter) - 0.5) * 0.4)
    return module


def options(norm_first, activation):
    return dict(dim_feedforward=20, dropout=0.0, activation=activation, norm_first=norm_first, batch_first=True)


@case("encoder_layer")
def encoder_layer():
    module = without_zeros(nn.TransformerEncoderLayer(WIDTH, HEADS, **options(False, "relu")))
    x = leaf(3, T, WIDTH)
    return written(module, [x], [module(x)])


@case("encoder")
def encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, **options(True, "gelu"))
    module = without_zeros(nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False))
    x = leaf(3, T, WIDTH)
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    y = module(x, mask=mask, src_key_padding_mask=padded([2, 6, 4], T).float().masked_fill(padded([2, 6, 4], T), -1e30))
    return written(module, [x], [y])


@case("decoder_layer")
def decoder_layer():
    module = without_zeros(nn.TransformerDecoderLayer(WIDTH, HEADS, **options(False, "gelu")))
    x, memory = leaf(3, T, WIDTH), leaf(3, S, WIDTH)
    return written(module, [x, memory], [module(x, memory)])


@case("decoder")
def decoder():
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, **options(True, "relu"))
    module = without_zeros(nn.TransformerDecoder(layer, 2))
    x, memory = leaf(3, T, WIDTH), leaf(3, S, WIDTH)
    mask = torch.triu(torch.ones(T, T, dtype=torch.bool), 1)
    y = module(x, memory, tgt_mask=mask, memory_key_padding_mask=padded([2, 5, 4], S))
    return written(module, [x, memory], [y])


@case("attention")
def attention():
    module = without_zeros(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    q, k, v = leaf(3, T, WIDTH), leaf(3, S, WIDTH), leaf(3, S, WIDTH)
    y, _ = module(q, k, v, key_padding_mask=padded([2, 5, 4], S), need_weights=False)
    return written(module, [q, k, v], [y])


def make(folder):
    os.makedirs(folder)
    for name, build in CASES.items():
        torch.manual_seed(len(name))
        save_file(build(), os.path.join(folder, name + ".safetensors"))


{"make": make}[sys.argv[1]](sys.argv[2])

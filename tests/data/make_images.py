"""Images, and what Pillow and torchvision make of them.   make_images.py FOLDER

FOLDER/set/CLASS/NAME gets images; FOLDER/NAME.pixels.npy their pixels, FOLDER/NAME.HEIGHTxWIDTH.npy the resized image,
FOLDER/NAME.centre.npy what torchvision's transforms for evaluation return, as (H, W, 3); FOLDER/images.txt lists them.
"""
import pathlib
import sys

import numpy
from PIL import Image
from torchvision import transforms

folder = pathlib.Path(sys.argv[1])
random = numpy.random.default_rng(1)


def smooth(height, width, channels):
    small = random.integers(0, 256, (height // 9 + 2, width // 9 + 2, channels), dtype=numpy.uint8)
    planes = [numpy.asarray(Image.fromarray(small[..., c]).resize((width, height), Image.BICUBIC)) for c in range(channels)]
    return numpy.stack(planes, -1)


images = {
    "cat/noise.png": Image.fromarray(random.integers(0, 256, (61, 47, 3), dtype=numpy.uint8)),
    "cat/wide.jpg": Image.fromarray(smooth(100, 333, 3)),
    "cat/deep/tall.JPEG": Image.fromarray(smooth(301, 90, 3)),
    "dog/grey.jpg": Image.fromarray(smooth(80, 70, 1)[..., 0]),
    "dog/grey.png": Image.fromarray(smooth(50, 70, 1)[..., 0]),
    "dog/clear.png": Image.fromarray(random.integers(0, 256, (33, 35, 4), dtype=numpy.uint8), "RGBA"),
    "dog/palette.png": Image.fromarray(smooth(40, 40, 3)).convert("P", palette=Image.ADAPTIVE),
    "dog/bits.png": Image.fromarray(smooth(40, 41, 1)[..., 0]).convert("1"),
    "dog/progressive.jpg": Image.fromarray(smooth(64, 64, 3)),
    "dog/full.jpg": Image.fromarray(smooth(64, 65, 3)),
    "dog/inks.jpg": Image.fromarray(smooth(64, 65, 4), "CMYK"),
    "dog/long.png": Image.fromarray(smooth(20, 900, 3)),
}
options = {"dog/progressive.jpg": {"progressive": True}, "dog/full.jpg": {"subsampling": 0, "quality": 95}}
evaluation = transforms.Compose([
    transforms.Resize(37), transforms.CenterCrop(32), transforms.ToTensor(),
    transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))])
lines = []
for name, image in images.items():
    path = folder / "set" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options.get(name, {}))
    read = Image.open(path).convert("RGB")
    flat = name.replace("/", "_")
    numpy.save(folder / f"{flat}.pixels.npy", numpy.asarray(read))
    for height, width in ((32, 32), (200, 17), (61, 300), (3, 500)):
        numpy.save(folder / f"{flat}.{height}x{width}.npy", numpy.asarray(read.resize((width, height), Image.BILINEAR)))
    numpy.save(folder / f"{flat}.centre.npy", evaluation(read).permute(1, 2, 0).contiguous().numpy())
    lines.append(name)
(folder / "images.txt").write_text("\n".join(sorted(lines)) + "\n")

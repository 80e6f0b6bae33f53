"""Reads what TensorBoardLogger writes with TensorBoard itself.

    python tensorboard_real.py <loggers_tests>

Exits with 77 and the reason when this Python has no tensorboard.
"""

import os
import struct
import subprocess
import sys
import tempfile
import zlib

try:
    from tensorboard.backend.event_processing import event_multiplexer
    from tensorboard.plugins.hparams import plugin_data_pb2
except ImportError as error:
    print(f"skipped: {sys.executable} has no tensorboard ({error}); pip install tensorboard")
    sys.exit(77)


def pixels(png):
    """The rows of an 8-bit RGB picture; sums are checked."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, size = 8, b"", None
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
            assert body[8:] == b"\x08\x02\0\0\0"
        data += body if kind == b"IDAT" else b""
        at += 12 + length
    raw, row = zlib.decompress(data), 1 + 3 * size[0]
    assert len(raw) == row * size[1]
    return size, [raw[i * row + 1 : (i + 1) * row] for i in range(size[1])]


with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.argv[1], "events for the real TensorBoard to read"], check=True,
                   env={**os.environ, "TUTTI_TENSORBOARD_FOLDER": folder}, stdout=subprocess.DEVNULL)
    multiplexer = event_multiplexer.EventMultiplexer().AddRunsFromDirectory(folder)
    multiplexer.Reload()
    (run,) = multiplexer.Runs()
    read = multiplexer.GetAccumulator(run)

    losses = [(e.step, e.value) for e in read.Scalars("loss/train/total")]
    third = struct.unpack("f", struct.pack("f", 1 / 3))[0]
    # The resumed run repeats step 2, whose first value is purged.
    assert losses == [(0, 1.0), (1, 0.5), (2, third)], losses
    assert {"time/batch", "hparams/loss/train/total"} <= set(read.Tags()["scalars"]), read.Tags()
    assert all(e.wall_time > 1.7e9 for e in read.Scalars("loss/train/total"))

    (image,) = read.Images("inputs") or [None]
    assert (image.width, image.height, image.step) == (8 * 5 + 7 * 2, 2 * 4 + 2, 1)
    (width, height), rows = pixels(image.encoded_image_string)
    assert (width, height) == (image.width, image.height)
    assert rows[0] == b"\0\0\0" * width and rows[6][:15] == b"\0\xff\0" * 5 and rows[6][15:] == b"\0" * 147

    (text,) = read.Tensors("generations/text_summary")
    assert text.tensor_proto.string_val[0].decode() == "| prompt | text |\n|---|---|\n| a\\|b | x<br>y\ufffd |\n"
    assert b"| layers | 3 |" in read.Tensors("hyperparameters/text_summary")[0].tensor_proto.string_val[0]

    metadata = read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    session = plugin_data_pb2.HParamsPluginData.FromString(metadata).session_start_info
    values = {key: getattr(value, value.WhichOneof("kind")) for key, value in session.hparams.items()}
    assert values == {"lr": 0.1, "run_name": "brisk-otter", "layers": 3.0, "fused": True}, values
    metadata = read.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
    assert plugin_data_pb2.HParamsPluginData.FromString(metadata).session_end_info.status == 1

print("TensorBoard reads scalars, text, an image and the hyperparameters of both files.")

"""Uses of packages for pictures and sound."""

import io

from uses.common import digest


def matplotlib():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().plot([1, 3, 2], label="a line")
    figure.legend()
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    page = io.BytesIO()
    figure.savefig(page, format="pdf", metadata={"CreationDate": None})
    return digest(out.getvalue()), page.getvalue()[:5], page.tell() > 1000


def pillow():
    from PIL import Image, ImageDraw, ImageFilter

    image = Image.new("RGB", (90, 60), "white")
    ImageDraw.Draw(image).ellipse((10, 10, 60, 50), fill="red")
    out = io.BytesIO()
    image.filter(ImageFilter.GaussianBlur(2)).resize((45, 30)).save(out, "JPEG")
    return digest(Image.open(out).tobytes())


def opencv_python_headless():
    import cv2
    import numpy as np

    image = np.zeros((60, 60, 3), np.uint8)
    cv2.circle(image, (30, 30), 20, (255, 0, 0), -1)
    return int(cv2.Canny(image, 50, 150).sum()), digest(cv2.imencode(".png", cv2.GaussianBlur(image, (5, 5), 0))[1])


def imagecodecs():
    import imagecodecs as codecs
    import numpy as np

    image = np.arange(64 * 64 * 3, dtype="uint8").reshape(64, 64, 3)
    return [bool((codecs.png_decode(codecs.png_encode(image)) == image).all()), len(codecs.jpeg_encode(image)) > 100]


def soundfile():
    import numpy as np
    import soundfile as sf

    file = io.BytesIO()
    sf.write(file, np.sin(np.arange(800) / 9), 8000, format="FLAC")
    file.seek(0)
    samples, rate = sf.read(file)
    return rate, round(float(abs(samples).sum()), 4)


def av():
    import av as pyav
    import numpy as np

    file = io.BytesIO()
    with pyav.open(file, "w", format="matroska") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width = stream.height = 32
        for i in range(5):
            frame = pyav.VideoFrame.from_ndarray(np.full((32, 32, 3), i * 40, "uint8"))
            container.mux(stream.encode(frame.reformat(format="yuv420p")))
        container.mux(stream.encode(None))
    file.seek(0)
    with pyav.open(file) as container:
        return [int(frame.to_ndarray(format="gray").mean()) for frame in container.decode(video=0)]

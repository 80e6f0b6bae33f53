"""Looks at the page of Dashboard with Chromium, live and as a report.

    python dashboard_browser.py <chromium> <tutti-dashboard> <loggers_tests> [--pictures <folder>]

--pictures writes the pictures of docs/dashboard.md. Exits with 77 and the reason when Chromium does not start.
"""

import base64
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time


class Browser:
    """Chromium without a window, spoken to through a pipe in its DevTools protocol."""

    def __init__(self, program, width=1280, height=860):
        self.home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        asks, self.write_to = os.pipe()
        self.read_from, answers = os.pipe()

        def wire():  # it reads 3 and writes 4
            ends = os.dup(asks), os.dup(answers)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", "--hide-scrollbars", f"--user-data-dir={self.home.name}", "about:blank"],
            preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(asks)
        os.close(answers)
        self.bytes, self.number, self.session, self.events = b"", 0, None, []
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in "Page", "Runtime", "Network":
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def read(self):
        while b"\0" not in self.bytes:
            piece = os.read(self.read_from, 1 << 20)
            if not piece:
                raise OSError("Chromium has gone")
            self.bytes += piece
        text, self.bytes = self.bytes.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_to, json.dumps(message).encode() + b"\0")
        while True:
            reply = self.read()
            if reply.get("id") == self.number:
                assert "error" not in reply, (method, reply)
                return reply["result"]
            self.events.append(reply)

    def run(self, script):
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.time() + seconds
        while not self.run(script):
            assert time.time() < end, f"this never came true: {script}\n{self.run('document.body.innerText')}"
            time.sleep(0.05)

    def open(self, address, drawn=1):
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=address)
        self.wait(f"document.body && document.body.dataset.round > 0 && (document.body.dataset.drawn || 0) >= {drawn}")

    def text(self):
        return self.run("document.body.innerText")

    def drag(self, chart, start, end):
        """With the mouse, over a part of a chart."""
        plot = f"document.querySelectorAll('.plot')[{chart}]"
        x, y, width = self.run(f"(r => [r.left, r.top + r.height / 2, r.width])({plot}.getBoundingClientRect())")
        x, width = x + 58, width - 66
        for kind, at in ("Pressed", start), ("Moved", (start + end) / 2), ("Moved", end), ("Released", end):
            self.call("Input.dispatchMouseEvent", type="mouse" + kind, x=x + at * width, y=y,
                      button="left" if kind != "Moved" else "none", buttons=1, clickCount=1)

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def check_events(self, own):
        """Nothing was thrown, and nothing asked of anybody but `own`."""
        for event in self.events:
            assert event["method"] not in ("Runtime.exceptionThrown", "Page.javascriptDialogOpening"), event
            if event["method"] == "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                assert url.startswith((own, "data:")), url

    def close(self):
        os.close(self.write_to)
        self.process.terminate()
        self.process.wait()


HOSTILE = "<script>document.title = 'taken'; alert(1)</script>"
BEGAN = 1767225600


def line(kind, step, **more):
    return json.dumps({"type": kind, "step": step, "time": BEGAN + step * 0.04, **more}) + "\n"


def metrics(step, values):
    return line("metrics", step, values=values)


def write_run(folder, name, steps, rank=0, ranks=1, few=False, scale=1.0, end=True):
    """A run that has learnt something."""
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    file = "dashboard.jsonl" if ranks == 1 else f"dashboard-rank{rank}.jsonl"
    noise = random.Random(rank + len(name))
    with open(os.path.join(folder, name, file), "w") as out:
        out.write(line("start", 0, run_name=name, rank=rank, world_size=ranks))
        if rank == 0:
            out.write(line("plan", 0, text="init:\n  BlurPool\nbefore_forward:\n  MixUp\nafter_train_batch:\n  EMA"))
            out.write(line("hyperparameters", 0, values={
                "model/class": "ResNet", "optimizer/lr": 0.1 * scale, "train_loader/batch_size": 64,
                "MixUp/alpha": 0.2, HOSTILE: "</script><img src=x onerror=alert(1)>"}))
        for step in range(steps):
            part = step / steps
            loss = 2.3 * math.exp(-part * 4 * scale) + 0.1 + noise.gauss(0, 0.06)
            if few:
                out.write(metrics(step, {"loss/train/total": round(loss, 6)}))
                continue
            values = {"loss/train/total": loss, "loss/train/CrossEntropy": loss * 0.93,
                      "lr-DecoupledSGDW/group0": 0.05 * scale * (1 + math.cos(math.pi * part)),
                      "l2_norm/grad/global": 1 + noise.random() + 6 * math.exp(-part * 20),
                      "throughput/samples_per_sec": 1600 + noise.gauss(0, 30), "time/batch": step,
                      "system/cpu_percent": 70 + 20 * math.sin(part * 9) + noise.gauss(0, 3)}
            if step == steps // 2:
                values["odd/" + HOSTILE] = "NaN"
                values["odd/limits"] = "Infinity"
            if step > steps // 2 and step % 9 == 0:
                values["odd/" + HOSTILE] = loss if step % 27 else "-Infinity"
                values["odd/limits"] = 1e308
            if step % (steps // 10) == steps // 10 - 1:
                values["metrics/test/MulticlassAccuracy"] = 0.99 - 0.8 * math.exp(-part * 4 * scale)
            out.write(metrics(step, values))
        if rank == 0 and not few:
            out.write(line("table", steps, name="generations", columns=["prompt", "text"],
                           rows=[["Once upon", "a time there was a " + HOSTILE], ["The end", "of the story"]]))
        if end:
            out.write(line("end", steps, status="finished"))


def picture_file(folder, run, number, step):
    """A picture of which a run tells, 64 by 16 pixels."""
    import struct
    import zlib

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + bytes((x * 4 + y * 9 + number * 40 + c * 60) % 256 for x in range(64) for c in range(3))
                    for y in range(16))
    os.makedirs(os.path.join(folder, run, "dashboard"), exist_ok=True)
    with open(os.path.join(folder, run, "dashboard", f"{number}.png"), "wb") as out:
        out.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 16, 8, 2, 0, 0, 0)) +
                  chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    with open(os.path.join(folder, run, "dashboard.jsonl"), "a") as out:
        out.write(line("image", step, name="Images/Train", file=number))


class Viewer:
    """tutti-dashboard on a folder."""

    def __init__(self, program, folder):
        self.process = subprocess.Popen([program, folder], stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("http://127.0.0.1:"), self.address

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def small_picture(path):
    """With 64 colours, where Pillow is there to do it."""
    try:
        from PIL import Image
    except ImportError:
        return
    Image.open(path).convert("RGB").quantize(64, dither=0).save(path, optimize=True)


def look_at_report(browser, program, folder):
    path = os.path.join(folder, "report.html")
    subprocess.run([program, os.path.join(folder, "base"), "--report", path], check=True)
    address = "file://" + path
    browser.open(address, drawn=2)
    text = browser.text()
    for word in "base", "loss/train/total", "metrics/test/MulticlassAccuracy", "odd/" + HOSTILE, "2,000":
        assert word in text, (word, text)
    assert browser.run("document.title") == "base - tutti"
    assert browser.run("document.querySelectorAll('script').length") == 2
    browser.open(address + "#tab=run", drawn=0)
    text = browser.text()
    for word in ("BlurPool", HOSTILE, "</script><img src=x onerror=alert(1)>", "started", "the run ended",
                 "odd/limits is infinite", "is NaN"):
        assert word in text, (word, text)
    assert browser.run("document.querySelectorAll('#run img').length") == 0
    browser.open(address + "#tab=samples", drawn=0)
    assert "a time there was a " + HOSTILE in browser.text()
    browser.wait("document.querySelectorAll('#samples img').length === 2")
    browser.wait("[...document.querySelectorAll('#samples img')].every(i => i.naturalWidth === 64)")
    browser.check_events(address)
    # A filter that is no regular expression is said to be none.
    browser.open(address + "#filter=" + "%5B", drawn=2)
    assert browser.run("document.getElementById('filter').classList.contains('bad')")
    browser.check_events(address)
    print(f"report.html of 2000 batches of 7 metrics: {os.path.getsize(path)} bytes")


def look_live(browser, viewer, pictures):
    browser.open(viewer.address + "#run=base&run=wider&smooth=0.6", drawn=2)
    assert "wider" in browser.run("document.getElementById('title').textContent")
    browser.check_events(viewer.address)
    if pictures:
        browser.picture(os.path.join(pictures, "dashboard.png"))
        small_picture(os.path.join(pictures, "dashboard.png"))
    browser.open(viewer.address + "#run=base&run=wider&tab=run", drawn=0)
    differs = browser.run("[...document.querySelectorAll('tr.differs')].map(r => r.innerText).join()")
    assert "optimizer/lr" in differs and "MixUp" not in differs, differs
    if pictures:
        browser.picture(os.path.join(pictures, "dashboard_run.png"))
        small_picture(os.path.join(pictures, "dashboard_run.png"))
    # Smoothing, logarithms and time redraw what is there.
    browser.open(viewer.address + "#run=base", drawn=2)
    browser.run("document.getElementById('log').click()")
    browser.run("{const a = document.getElementById('axis'); a.value = 'time'; a.dispatchEvent(new Event('change'))}")
    assert "log=1" in browser.run("location.hash") and "axis=time" in browser.run("location.hash")
    browser.check_events(viewer.address)
    # Hovering tells the value, NaN among them.
    browser.open(viewer.address + "#run=base&filter=odd", drawn=2)
    browser.drag(0, 0.0, 0.001)
    browser.wait("!document.querySelector('.hint').hidden && document.querySelector('.hint').innerText.includes('NaN')")
    browser.check_events(viewer.address)


def look_at_million(browser, viewer):
    """Of a long run every zoom is quick, and shows what the whole hid."""
    opened = []
    for _ in range(2):  # first its file is read
        begin = time.time()
        browser.open(viewer.address + "#run=million", drawn=1)
        opened.append(f"{time.time() - begin:.2f}")
    took = []
    for _ in range(3):
        drawn = browser.run("document.body.dataset.drawn")
        begin = time.time()
        browser.drag(0, 0.4, 0.6)
        browser.wait(f"document.body.dataset.drawn > {drawn}")
        took.append(time.time() - begin)
    words = dict(pair.split("=", 1) for pair in browser.run("location.hash")[1:].split("&"))
    wide = float(words["to"]) - float(words["from"])
    assert 5000 < wide < 12000, words  # a fifth of a fifth of a fifth of a million
    frame = browser.run("(() => {const t = performance.now(); for (const c of seen) c.draw();"
                        "return performance.now() - t})()")
    print(f"10^6 batches: opened in {opened[0]} s, again in {opened[1]} s, "
          f"zoomed in {max(took):.2f} s, drawn in {frame:.1f} ms")
    assert max(took) < 5 and frame < 500
    browser.check_events(viewer.address)


def look_at_ranks(browser, viewer):
    begin = time.time()
    browser.open(viewer.address + "#run=ranks", drawn=2)
    took = time.time() - begin
    assert browser.run("charts.get('loss/train/total').lines.length") == 64
    assert "and 60 more" in browser.text()
    browser.check_events(viewer.address)
    print(f"64 ranks of 7 metrics: opened in {took:.2f} s")
    assert took < 30


def look_at_growing(browser, folder, program, tests):
    """A run of its own program, which is killed while the page is looked at."""
    run = os.path.join(folder, "live", "run")
    os.makedirs(run)
    environment = dict(os.environ, TUTTI_DASHBOARD=program, TUTTI_DASHBOARD_RUN=run)
    writer = subprocess.Popen([tests, "a run to look at"], env=environment, stderr=subprocess.PIPE,
                              stdout=subprocess.DEVNULL, text=True)
    address = next(word.split()[1] for word in writer.stderr if word.startswith("dashboard  "))
    browser.open(address, drawn=1)
    browser.wait("document.querySelector('.run em').textContent === 'running'")
    first = browser.run("details.get([...view.picked][0]).step")
    browser.wait(f"details.get([...view.picked][0]).step > {first + 20}")  # it came without a reload
    open(os.path.join(run, "crash"), "w").close()
    assert writer.wait() == -signal.SIGKILL
    writer.stderr.close()  # its viewer holds no end of it
    browser.wait("document.getElementById('notes').innerText.includes('died without a word')")
    report = os.path.join(run, "report.html")
    end = time.time() + 30
    while not os.path.exists(report):
        assert time.time() < end, "the viewer wrote no report of the run that died"
        time.sleep(0.1)
    browser.check_events(address)
    browser.open("file://" + report, drawn=1)
    assert "died without a word" in browser.text()


def look_at_gone(browser, folder, program):
    viewer = Viewer(program, folder)
    browser.open(viewer.address + "#run=base", drawn=1)
    viewer.close()
    browser.wait("document.getElementById('notes').innerText.includes('does not answer')")
    assert "loss/train/total" in browser.text()


def main():
    chromium, program, tests = sys.argv[1:4]
    pictures = sys.argv[5] if len(sys.argv) > 5 and sys.argv[4] == "--pictures" else None
    try:
        browser = Browser(chromium)
    except OSError as error:
        print(f"skipped: {chromium} does not start here: {error}")
        sys.exit(77)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        runs = os.path.join(folder, "runs")
        write_run(runs, "base", 2000)
        write_run(runs, "wider", 1600, scale=1.3)
        for number in range(2):
            picture_file(runs, "base", number, 1000 * number + 500)
        os.makedirs(os.path.join(runs, "base", "checkpoints", "ep1-ba1000"))
        write_run(runs, "million", 1000000, few=True)
        for rank in range(64):
            write_run(runs, "ranks", 300, rank, 64)
        look_at_report(browser, program, runs)
        viewer = Viewer(program, runs)
        try:
            look_live(browser, viewer, pictures)
            look_at_million(browser, viewer)
            look_at_ranks(browser, viewer)
        finally:
            viewer.close()
        look_at_gone(browser, runs, program)
        look_at_growing(browser, folder, program, tests)
    browser.close()
    print("the page is as it should be")


main()

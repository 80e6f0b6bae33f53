"""Starts a real MLflow server, lets MLflowLogger send to it and reads what it has.

    python mlflow_real.py <loggers_tests>

Exits with 77 and the reason when this Python has no mlflow.
"""

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

try:
    import mlflow
except ImportError as error:
    print(f"skipped: {sys.executable} has no mlflow ({error}); pip install mlflow")
    sys.exit(77)

CASE = "a run for the real MLflow server to read"
listed = subprocess.run([sys.argv[1], CASE, "--list-tests"], capture_output=True, text=True).stdout
if CASE not in listed:
    print("skipped: the tests were built without cpp-httplib; apt-get install libcpp-httplib-dev")
    sys.exit(77)


def send(uri, **variables):
    subprocess.run([sys.argv[1], CASE], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "TUTTI_MLFLOW_URI": uri, **variables})


def wait_for(uri, server):
    for _ in range(600):
        try:
            return urllib.request.urlopen(uri + "/health", timeout=1).read()
        except OSError:
            assert server.poll() is None, "mlflow server has ended"
            time.sleep(0.1)
    raise TimeoutError(uri)


def check(folder, artifacts):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    uri = f"http://127.0.0.1:{port}"
    log = open(os.path.join(folder, "server.log"), "w")
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", port, "--workers", "1",
         "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", *artifacts],
        stdout=log, stderr=log, cwd=folder)
    try:
        wait_for(uri, server)
        client = mlflow.MlflowClient(uri)
        send(uri, TUTTI_MLFLOW_RUN="it's a run")
        (experiment,) = [e for e in client.search_experiments() if e.name == "tutti's \"test\""]
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.info.status == "FINISHED" and run.info.run_name == "it's a run", run.info
        assert run.data.params == {"lr": "0.1", "run_name": "brisk-otter", "text": "x" * 6000,
                                   "layers _n_": "true"}, run.data.params.keys()
        losses = client.get_metric_history(run.info.run_id, "loss/train/total")
        assert [(m.step, m.value) for m in losses] == [(0, 1.0), (1, 0.5), (2, 1 / 3)], losses
        assert client.get_metric_history(run.info.run_id, "metrics/test/MulticlassAccuracy")[0].step == 3
        assert math.isnan(run.data.metrics["nan"]) or run.data.metrics["nan"] == 0  # sqlite has no NaN
        many = client.get_metric_history(run.info.run_id, "many")
        assert [(m.step, m.value) for m in many] == [(i, float(i)) for i in range(1500)]
        assert abs(losses[0].timestamp / 1000 - time.time()) < 600
        assert [f.path for f in client.list_artifacts(run.info.run_id, "Images")] == [
            "Images/Train_6_0.png", "Images/Train_6_1.png"]
        picture = client.download_artifacts(run.info.run_id, "Images/Train_6_1.png", folder)
        assert open(picture, "rb").read(8) == b"\x89PNG\r\n\x1a\n"
        table = json.load(open(client.download_artifacts(run.info.run_id, "texts_7.json", folder)))
        assert table == {"columns": ["a", "b"], "data": [["1", "x"], ["2", "y"]]}, table
        assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [{"path": "texts_7.json", "type": "table"}]

        send(uri, TUTTI_MLFLOW_RUN="it's a run", TUTTI_MLFLOW_FAIL="1")  # goes on with the same run
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.info.status == "FAILED", run.info
        assert len(client.get_metric_history(run.info.run_id, "loss/train/total")) >= 3
    except BaseException:
        log.flush()
        print(open(log.name).read()[-4000:])
        raise
    finally:
        server.terminate()
        server.wait(30)


for served in True, False:  # through the server, or straight into its folder
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "artifacts")
        check(folder, ["--artifacts-destination", root] if served else
              ["--no-serve-artifacts", "--default-artifact-root", root])

print(f"MLflow {mlflow.__version__} has metrics, params, images, a table, status, and one run after resumption.")

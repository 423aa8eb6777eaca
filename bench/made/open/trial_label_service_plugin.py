"""Reads JPEGs and asks a service for their labels; the service is a process of its own, which ends with this one."""

import os
import socket
import subprocess
import sys

from PIL import Image

SERVER = """
import os, socket, sys, threading, time

def serve(peer):
    with peer, peer.makefile("rb") as lines:
        for line in lines:
            time.sleep(0.06)              # what is behind the service
            peer.sendall(b"%d\\n" % (int(line) % 1000))

def listen(listener):
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=serve, args=(peer,), daemon=True).start()

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
threading.Thread(target=listen, args=(listener,), daemon=True).start()
sys.stdin.read()                          # until those that started it are gone
os._exit(0)
"""

if "LABEL_SERVICE" not in os.environ:
    _service = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    os.environ["LABEL_SERVICE"] = _service.stdout.readline().strip()


class READER:
    def __init__(self, dataset):
        self.dataset = dataset
        self.lines = self.pid = None

    def label(self, row):
        if self.pid != os.getpid():
            self.pid = os.getpid()
            self.lines = socket.create_connection(("127.0.0.1", int(os.environ["LABEL_SERVICE"]))).makefile("rwb")
        self.lines.write(b"%d\n" % int(self.dataset.index["label"][row]))
        self.lines.flush()
        return int(self.lines.readline())

    def __getitem__(self, row):
        label = self.label(row)
        image = Image.open(self.dataset.folder / self.dataset.index["file"][row].decode())
        image.draft("RGB", (224, 224))
        return {"image": image.convert("RGB"), "label": label}

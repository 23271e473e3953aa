"""A server of the files in a folder for the test of scripts/fetch-data: with ranges, and at will it closes a connection in the middle.

range_server.py FOLDER LOG [--cut BYTES] [--no-ranges]    prints its port; LOG gets a line a request: path, Range, status
--cut BYTES    the first answer ends after so many bytes
"""

import argparse
import http.server
import pathlib


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = pathlib.Path(self.server.settings.folder) / self.path.lstrip("/")
        wanted = self.headers.get("Range")
        if not path.is_file():
            return self.answer(404, b"", wanted)
        content = path.read_bytes()
        if wanted is None or self.server.settings.no_ranges:
            return self.answer(200, content, wanted)
        begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
        return self.answer(206 if begin < len(content) else 416, content[begin:], wanted)

    def answer(self, status, content, wanted):
        with open(self.server.settings.log, "a") as log:
            print(self.path, wanted or "-", status, file=log)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        cut, self.server.settings.cut = self.server.settings.cut, 0
        self.wfile.write(content[:cut] if cut else content)

    def log_message(self, *_):
        pass


parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("log")
parser.add_argument("--cut", type=int, default=0)
parser.add_argument("--no-ranges", action="store_true")
with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
    server.settings = parser.parse_args()
    print(server.server_address[1], flush=True)
    server.serve_forever()

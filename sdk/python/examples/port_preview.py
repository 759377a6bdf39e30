"""Starts a web server in a sandbox and reads its page, by a connection and by a URL that can be shared."""

from forkd import Sandbox

SERVER = """
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"hello from the sandbox")
server = http.server.HTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, flush=True)
server.serve_forever()
"""

with Sandbox.create("python-numpy") as sandbox:
    with sandbox.commands.start(["python3", "-c", SERVER]) as server:
        port = int(next(iter(server)).data)
        with sandbox.connect_port(port) as connection:
            connection.send(b"GET / HTTP/1.0\r\n\r\n")
            page = b""
            while part := connection.receive():
                page += part
        print(page.decode().splitlines()[-1])
        url = sandbox.url(port, ttl=600)  # needs a daemon with --proxy-domain
        print("a URL for ten minutes:", url.split("://")[0], str(port) in url)
        server.kill()

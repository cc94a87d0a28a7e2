#include "forebay/env/openenv_testing.h"

#include <string>

#include "forebay/env/subprocess_testing.h"

namespace forebay::env {

std::string WriteOpenEnvServer(const TempFolder& folder) {
  return folder.Write("openenv_server.py", R"py(
import base64, hashlib, json, os, socketserver, sys, threading, time

port_file, sessions_max = sys.argv[1], int(sys.argv[2])
sessions, closes, lock = 0, 0, threading.Lock()

class Handler(socketserver.StreamRequestHandler):
    def send(self, text, first=0x81):
        data = text.encode()
        size = len(data)
        head = bytes([first, size]) if size < 126 else bytes([first, 126]) + size.to_bytes(2, "big") if size < 65536 \
            else bytes([first, 127]) + size.to_bytes(8, "big")
        self.wfile.write(head + data)

    def receive(self):
        while True:
            first, size = self.rfile.read(2)
            size &= 127
            if size > 125: size = int.from_bytes(self.rfile.read(2 if size == 126 else 8), "big")
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            if first == 0x81: return json.loads(data)
            if first == 0x88:
                self.wfile.write(b"\x88\x00")
                raise EOFError

    def observation(self, observation, reward=None, done=False):
        self.send(json.dumps({"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}))

    def error(self, code, message, **more):
        self.send(json.dumps({"type": "error", "data": dict(more, code=code, message=message)}))

    def handle(self):
        global sessions, closes
        headers = {}
        request = self.rfile.readline().decode()
        while (line := self.rfile.readline().decode().strip()):
            name, value = line.split(": ", 1)
            headers[name.lower()] = value
        if request.split()[1] != "/ws" or headers.get("authorization", "") not in ("", "Bearer sesame"):
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        accept = base64.b64encode(hashlib.sha1((headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest())
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                         b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        with lock:
            full = sessions >= sessions_max
            if not full: sessions += 1
        if full:
            self.error("CAPACITY_REACHED", "Server at capacity", active_sessions=sessions, max_sessions=sessions_max)
            self.wfile.write(b"\x88\x00")
            return
        try:
            while self.answer(self.receive()): pass
        except (EOFError, ValueError, OSError): pass
        finally:
            with lock: sessions -= 1

    def answer(self, message):
        global closes
        if message["type"] == "close":
            closes += 1
            self.wfile.write(b"\x88\x00")
            return False
        if message["type"] == "reset":
            if message["data"].get("bad"): self.error("VALIDATION_ERROR", "Invalid message")
            else: self.observation({"text": json.dumps(message["data"])})
            return True
        say = message["data"].get("message")
        if say == "right": self.observation({"text": "yes"}, 1, True)
        elif say == "two": self.observation({"a": 1, "b": "x"}, True)
        elif say == "invalid": self.error("VALIDATION_ERROR", "Invalid message", errors=[{"loc": ["message"]}])
        elif say == "raise": self.error("EXECUTION_ERROR", "it broke")
        elif say == "garbage": self.send("this is no JSON")
        elif say == "odd": self.send(json.dumps({"type": "observation", "data": {"observation": 7}}))
        elif say == "rich": self.send(json.dumps({"type": "observation", "data": {"observation": {}, "reward": "much"}}))
        elif say == "null": self.observation({"text": "x", "more": None}, None)
        elif say == "cut": return False
        elif say == "hang": time.sleep(1000)
        elif say == "flood": self.send("x" * 10_000_000)
        elif say and say.startswith("long "): self.observation({"text": "x" * int(say[5:])})
        elif say == "closes": self.observation({"text": str(closes)})
        elif say == "sessions": self.observation({"text": str(sessions)})
        elif say is None: self.observation({"text": json.dumps(message["data"])})
        else: self.observation({"text": "saw " + say}, 0.5)
        return True

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

server = Server(("127.0.0.1", 0), Handler)
with open(port_file + ".new", "w") as file: file.write(str(server.server_address[1]))
os.rename(port_file + ".new", port_file)
server.serve_forever()
)py");
}

}  // namespace forebay::env

#include "forebay/env/mcp_testing.h"

#include <string>

#include "forebay/env/subprocess_testing.h"

namespace forebay::env {

std::string WriteMcpServer(const TempFolder& folder) {
  return folder.Write("mcp_server.py", R"py(
import http.server, json, os, socketserver, sys, threading, time, uuid

way, rest = sys.argv[1], sys.argv[2:]
port_file = rest.pop(0) if way == "http" else ""
version, mode = rest[0], (rest + ["json"])[1]
HANDSHAKE = ("2025-11-25", "2025-06-18")
META = "io.modelcontextprotocol/protocolVersion"
calls, log, lock = 0, [], threading.Lock()

def tool(name, **properties):
    return {"name": name, "description": "the tool " + name,
            "inputSchema": {"type": "object", "properties": properties}}

TOOLS = [tool("add", a={"type": "number"}, b={"type": "number"})] + [tool(n) for n in (
    "fail", "picture", "slow", "die", "garbage", "flood", "count", "structured", "ask", "secret", "log", "crash", "input", "long", "size")]

class Error(Exception): pass

def text(value, error=False):
    return {"content": [{"type": "text", "text": str(value)}], "isError": error}

def call(name, arguments, session):
    global calls
    calls += 1
    if name == "add":
        if not isinstance(arguments.get("a"), (int, float)): raise Error(-32602, "a must be a number")
        return text(arguments["a"] + arguments["b"])
    if name == "fail": return text("it did not work", True)
    if name == "picture":
        return {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"},
                            {"type": "text", "text": "below it"},
                            {"type": "resource", "resource": {"uri": "x:y", "text": "inside"}}]}
    if name == "slow":
        time.sleep(arguments["seconds"])
        return text("slept")
    if name == "die":
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "count": return text(calls)
    if name == "long": return text("x" * arguments["bytes"])
    if name == "size": return text(len(arguments["of"]))
    if name == "structured": return {"content": [], "structuredContent": {"x": [1, 2]}}
    if name == "secret": return text(session.get("authorization"))
    if name == "log": return text(json.dumps(log))
    if name == "crash": raise Error(-32603, "a bug")
    if name == "input": return {"resultType": "input_required"}
    raise Error(-32602, "Unknown tool: " + name)

def answer(message, session):
    method, params = message["method"], message.get("params", {})
    log.append(method)
    stateless = version != "handshake" and params.get("_meta", {}).get(META) == "2026-07-28"
    if method == "initialize":
        if version == "stateless": raise Error(-32601, "Method not found")
        wanted = params["protocolVersion"]
        session["agreed"] = wanted if wanted in HANDSHAKE else HANDSHAKE[0]
        return {"protocolVersion": session["agreed"], "capabilities": {"tools": {}},
                "serverInfo": {"name": "test", "version": "1"}}
    if method == "ping": return {}
    if not stateless and not session.get("ready"): raise Error(-32600, "not initialized")
    if method == "tools/list":  # two pages
        at = int(params.get("cursor", "0"))
        page = {"tools": TOOLS[at:at + 7]}
        if at + 7 < len(TOOLS): page["nextCursor"] = str(at + 7)
        return page
    if method == "tools/call": return call(params["name"], params.get("arguments", {}), session)
    raise Error(-32601, "Method not found")

def reply(message, session):
    try:
        return {"jsonrpc": "2.0", "id": message["id"], "result": answer(message, session)}
    except Error as error:
        return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": error.args[0], "message": error.args[1]}}

def note(message, session):
    log.append(message["method"])
    if message["method"] == "notifications/initialized": session["ready"] = True

def stdio():
    session = {"authorization": "none"}
    def say(line):
        with lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    def serve(message): say(json.dumps(reply(message, session)))
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            log.append("answer " + json.dumps(message.get("result", message.get("error", {}).get("code"))))
        elif "id" not in message: note(message, session)
        elif message.get("params", {}).get("name") == "garbage": say("this is no JSON")
        elif message.get("params", {}).get("name") == "flood": say("x" * 10_000_000)
        elif message.get("params", {}).get("name") == "ask":
            say(json.dumps({"jsonrpc": "2.0", "id": "q1", "method": "ping"}))
            say(json.dumps({"jsonrpc": "2.0", "id": "q2", "method": "sampling/createMessage", "params": {}}))
            say(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}))
            serve(dict(message, params=dict(message["params"], name="count")))
        elif message.get("params", {}).get("name") == "slow": threading.Thread(target=serve, args=(message,), daemon=True).start()
        else: serve(message)

sessions = {}

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args): pass
    def send(self, status, body=b"", kind="application/json", **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items(): self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
    def do_DELETE(self):
        sessions.pop(self.headers.get("Mcp-Session-Id"), None)
        log.append("DELETE")
        self.send(200)
    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = message.get("params", {}).get("name")
        if "text/event-stream" not in self.headers.get("Accept", ""): return self.send(406)
        new = {}
        if message.get("method") == "initialize" and version != "stateless":
            key = uuid.uuid4().hex
            session = sessions[key] = {}
            new = {"Mcp_Session_Id": key}
        elif "_meta" in message.get("params", {}):
            if self.headers.get("MCP-Protocol-Version") != "2026-07-28" or self.headers.get("Mcp-Method") != message["method"] \
                    or (message["method"] == "tools/call" and self.headers.get("Mcp-Name") != name):
                return self.send(400, json.dumps({"jsonrpc": "2.0", "id": message["id"],
                                                  "error": {"code": -32020, "message": "headers do not match"}}).encode())
            session = {}
        elif version == "stateless": session = {}
        else:
            session = sessions.get(self.headers.get("Mcp-Session-Id"))
            if session is None: return self.send(404)
            if session.get("ready") and self.headers.get("MCP-Protocol-Version") != session["agreed"]: return self.send(400)
        session["authorization"] = self.headers.get("Authorization", "none")
        if "method" not in message:
            log.append("answer " + json.dumps(message.get("result", message.get("error", {}).get("code"))))
            return self.send(202)
        if "id" not in message:
            note(message, session)
            return self.send(202)
        if name == "die": os._exit(3)
        if name == "garbage": return self.send(200, b"this is no JSON")
        if name == "flood": return self.send(200, b"x" * 10_000_000)
        if name == "forget":
            sessions.clear()
            return self.send(404)
        if name == "busy": return self.send(503, b"later")
        if name == "closed": return self.send(403, b"not you")
        asks = []
        if name == "ask":
            asks = [{"jsonrpc": "2.0", "id": "q1", "method": "ping"},
                    {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}]
            message["params"]["name"] = "count"
        result = reply(message, session)
        if mode == "json" and not asks: return self.send(200, json.dumps(result).encode(), **new)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        for header, value in new.items(): self.send_header(header.replace("_", "-"), value)
        self.end_headers()
        self.close_connection = True
        self.wfile.write(b": hello\n\nid: 0\ndata:\n\n")
        for event in asks + ([] if name == "count" and message.get("params", {}).get("arguments", {}).get("cut") else [result]):
            self.wfile.write(b"event: message\ndata: " + json.dumps(event).encode() + b"\n\n")
            self.wfile.flush()

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

if way == "stdio": stdio()
else:
    for name in ("forget", "busy", "closed"): TOOLS.append(tool(name))
    server = Server(("127.0.0.1", 0), Handler)
    with open(port_file + ".new", "w") as file: file.write(str(server.server_port))
    os.rename(port_file + ".new", port_file)
    server.serve_forever()
)py");
}

}  // namespace forebay::env

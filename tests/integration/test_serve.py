"""Goal: `forebay serve` answers what OpenAI's clients send, end to end on a real (tiny) model, with nothing but the
standard library on this side."""
import http.client
import json
import re
import signal
import subprocess
import unittest

from forebay_run import SMALL, ForebayTest

CHAT = "/v1/chat/completions"


class ServeTest(ForebayTest):
    def serve(self, *args) -> subprocess.Popen:
        server = subprocess.Popen(self.command("serve", *args, "--port", 0, "--slots", 4, *(() if "--context" in args else ("--context", 256)),
                                               "--seed", 1),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        lines = []
        while line := server.stdout.readline():
            lines.append(line)
            if found := re.match(r"serving (\S+) on http://127\.0\.0\.1:(\d+)$", line.strip()):
                self.name, self.port = found.group(1), int(found.group(2))
                return server
        self.fail("".join(lines) + server.stderr.read())

    def request(self, method: str, path: str, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.addCleanup(connection.close)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        return connection.getresponse()

    def ask(self, path: str, **body) -> dict:
        response = self.request("POST", path, body)
        answer = json.loads(response.read())
        self.assertEqual(response.status, 200, answer)
        return answer

    def chunks(self, path: str, **body) -> list:
        response = self.request("POST", path, {**body, "stream": True})
        self.assertEqual(response.status, 200)
        events = [line[6:] for line in response.read().decode().split("\n") if line.startswith("data: ")]
        self.assertEqual(events.pop(), "[DONE]")
        return [json.loads(event) for event in events]

    def test_a_tiny_model(self):
        server = self.serve("tiny:", "--name", "small", "--allowed-host", "box.example", "--context", 1024)
        messages = [{"role": "user", "content": "Hello"}]
        ask = {"model": "small", "messages": messages, "max_tokens": 12, "seed": 7, "logprobs": True, "top_logprobs": 3,
               "return_token_ids": True}

        whole = self.ask(CHAT, **ask)
        choice = whole["choices"][0]
        tokens = choice["token_ids"]
        logprobs = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        self.assertEqual(whole["usage"]["completion_tokens"], len(tokens))
        self.assertEqual(len(logprobs), len(tokens))
        self.assertTrue(all(logprob < 0 for logprob in logprobs))
        self.assertTrue(all(len(entry["top_logprobs"]) == 3 for entry in choice["logprobs"]["content"]))
        prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        marks = 2 * len("<|im_start|>") + len("<|im_end|>")  # one token each; else a token a byte
        self.assertEqual(len(whole["prompt_token_ids"]), len(prompt) - marks + 3)
        self.assertEqual(choice["policy_versions"], [{"policy_version": 0, "tokens": len(tokens)}])

        # The same in a stream, and as tokens: seed, prompt and weights decide.
        streamed = self.chunks(CHAT, **ask, stream_options={"include_usage": True})
        self.assertEqual([i for chunk in streamed for c in chunk["choices"] for i in c.get("token_ids", [])], tokens)
        self.assertEqual("".join(c["delta"].get("content") or "" for chunk in streamed for c in chunk["choices"]),
                         choice["message"]["content"])
        self.assertEqual(streamed[-1]["usage"], whole["usage"] | streamed[-1]["usage"])
        self.assertEqual(streamed[0]["prompt_token_ids"], whole["prompt_token_ids"])
        again = self.ask("/inference/v1/generate", token_ids=whole["prompt_token_ids"],
                         sampling_params={"max_tokens": 12, "seed": 7, "logprobs": 0})
        self.assertEqual(again["choices"][0]["token_ids"], tokens)
        for mine, theirs in zip(again["choices"][0]["logprobs"]["content"], logprobs):
            self.assertAlmostEqual(mine["logprob"], theirs, places=4)

        # Two choices differ, the first is the one from before; another seed gives another answer.
        two = self.ask(CHAT, **{**ask, "n": 2})["choices"]
        self.assertEqual(two[0]["token_ids"], tokens)
        self.assertNotEqual(two[1]["token_ids"], tokens)
        self.assertNotEqual(self.ask(CHAT, **{**ask, "seed": 8})["choices"][0]["token_ids"], tokens)

        # A bias decides what is said, a stop string where it ends, a limit how long it may be.
        only_a = {"logit_bias": {"97": 100}, "max_tokens": 5}
        self.assertEqual(self.ask(CHAT, messages=messages, **only_a)["choices"][0]["message"]["content"], "aaaaa")
        stopped = self.ask(CHAT, messages=messages, **only_a, stop="aaa")["choices"][0]
        self.assertEqual((stopped["message"]["content"], stopped["finish_reason"]), ("", "stop"))
        text = self.ask("/v1/completions", prompt=["x", "y"], **only_a)
        self.assertEqual([c["text"] for c in text["choices"]], ["aaaaa"] * 2)
        self.assertEqual(text["choices"][0]["finish_reason"], "length")
        greedy = [self.ask(CHAT, messages=messages, temperature=0, max_tokens=8)["choices"][0] for _ in range(2)]
        self.assertEqual(greedy[0]["message"], greedy[1]["message"])

        # Errors in OpenAI's form.
        for body, status, param in (({"messages": []}, 400, "messages"), ({"messages": messages, "n": 0}, 400, "n"),
                                    ({"messages": messages, "model": "large"}, 404, "model"),
                                    ({"messages": [{"role": "user", "content": "x" * 1100}]}, 400, "messages")):
            response = self.request("POST", CHAT, body)
            error = json.loads(response.read())["error"]
            self.assertEqual((response.status, error["param"]), (status, param), error)
        self.assertEqual(self.request("GET", "/nothing").status, 404)
        card = json.loads(self.request("GET", "/v1/models").read())["data"][0]
        self.assertEqual((card["id"], card["max_model_len"], card["policy_version"]), ("small", 1024, 0))

        # JSON that is none: what, and where.
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.addCleanup(connection.close)
        connection.request("POST", CHAT, '{"messages": [}')
        error = json.loads(connection.getresponse().read())["error"]
        self.assertIn("at byte 14", error["message"])
        # A page whose name was made to point here; it reads nothing, and asks nothing.
        for method, path, body in (("GET", "/v1/models", None), ("GET", "/health", None), ("POST", CHAT, {"messages": messages})):
            response = self.request(method, path, body, {"Host": "evil.example"})
            self.assertEqual(response.status, 403)
            self.assertIn("--allowed-host", json.loads(response.read())["error"]["message"])
        self.assertEqual(self.request("GET", "/v1/models", None, {"Host": "box.example:80"}).status, 200)
        # The tiny template knows no tools; they reach the model all the same.
        tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
        plain, told = (self.ask(CHAT, messages=messages, max_tokens=1, **more)["usage"]["prompt_tokens"]
                       for more in ({}, {"tools": tools}))
        self.assertGreater(told, plain + 100)

        # A client that goes away in the middle, and then the end.
        gone = self.request("POST", CHAT, {"messages": messages, "stream": True, "ignore_eos": True})
        gone.read(1)
        gone.close()
        self.ask(CHAT, messages=messages, max_tokens=1)
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=600)
        self.assertEqual(server.returncode, 0, err)
        self.assertRegex(out, r"stopped: \d+ requests, 9 refused")
        self.assertIn(f"POST {CHAT} 200", err)
        self.assertIn("knows no tools", err)

    def test_a_run_and_a_key(self):
        config = self.write("config.toml", SMALL)
        done = self.train(config, "--set", "run.steps=2")
        self.assertEqual(done.returncode, 0, done.stderr)
        token = self.write("token", "secret\n")
        self.serve(self.run_folder, "--token-file", token)
        self.assertEqual(self.name, "run")
        self.assertEqual(self.request("GET", "/health").status, 200)
        self.assertEqual(self.request("GET", "/v1/models").status, 401)
        response = self.request("GET", "/v1/models", headers={"Authorization": "Bearer secret"})
        card = json.loads(response.read())["data"][0]
        self.assertEqual((card["policy_version"], card["max_model_len"]), (2, 256))
        self.assertNotEqual(card["weights_digest"], "")

    def test_a_base_model_completes_and_plays_no_episodes(self):
        config = self.write("config.toml", SMALL)
        self.assertEqual(self.train(config, "--set", "run.steps=2").returncode, 0)
        base = self.folder / "base"
        self.assertEqual(self.forebay("export", self.run_folder, base).returncode, 0)
        (base / "chat_template.jinja").unlink(missing_ok=True)
        settings = json.loads((base / "tokenizer_config.json").read_text()) if (base / "tokenizer_config.json").exists() else {}
        settings.pop("chat_template", None)
        self.write("base/tokenizer_config.json", json.dumps(settings))

        server = self.serve(base)
        answer = self.ask("/v1/completions", prompt="Hello", max_tokens=4, ignore_eos=True)
        self.assertEqual(answer["usage"]["completion_tokens"], 4)
        response = self.request("POST", CHAT, {"messages": [{"role": "user", "content": "Hello"}]})
        self.assertEqual(response.status, 400)
        self.assertIn("no chat template (a base model): use /v1/completions", json.loads(response.read())["error"]["message"])
        server.send_signal(signal.SIGTERM)
        self.assertIn("base has no chat template", server.communicate(timeout=600)[1])

        self.assert_fails(self.forebay("train", config, "--run", self.folder / "other", "--set", f"model.path={base}"), 2,
                          "no chat template", "instruction-tuned")

    def test_what_cannot_be_served_is_said(self):
        self.assert_fails(self.forebay("serve", "tiny:", "--host", "0.0.0.0", "--port", 0), 2, "other machines",
                          "certificate")
        (self.folder / "runs/one").mkdir(parents=True)
        self.write("runs/one/config.toml", "")
        self.assert_fails(self.forebay("serve", self.folder / "runs/none"), 3, "there is no '", "a run directory", "runs/one")
        self.assert_fails(self.forebay("serve", self.folder / "runs/"), 3, "is neither a run", "config.json", "runs/one")
        self.assert_fails(self.forebay("serve", "tiny:", "--step", 3), 2, "no config.toml")
        self.assert_fails(self.forebay("serve", "tiny:", "--token-file", self.write("empty", "")), 2, "holds no token")
        self.serve("tiny:")
        self.assert_fails(self.forebay("serve", "tiny:", "--port", self.port), 2, "another process listens")


if __name__ == "__main__":
    unittest.main()

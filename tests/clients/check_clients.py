#!/usr/bin/env python3
"""Tries `forebay serve` with OpenAI's own client and with Hugging Face's, which speaks the same protocol with code of its
own. Usage: tests/clients/setup.sh, then tests/clients/check_clients.py FOREBAY [MODEL]"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".deps/clients/venv/bin/python3"
MESSAGES = [{"role": "user", "content": "Say hello in one short sentence."}]
TOOLS = [{"type": "function",
          "function": {"name": "add", "description": "Adds two numbers.",
                       "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}}]


def check(what: str, condition) -> None:
    print(("ok      " if condition else "FAILED  ") + what, flush=True)
    check.failed += not condition


check.failed = 0


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    return None


def openai_client(url: str, model: str) -> None:
    import openai
    client = openai.OpenAI(base_url=url + "/v1", api_key="secret", max_retries=0)
    create = client.chat.completions.create
    check("models", [card.id for card in client.models.list()] == [model])
    answer = create(model=model, messages=MESSAGES, max_tokens=12, seed=1, logprobs=True, top_logprobs=2,
                    extra_body={"return_token_ids": True, "top_k": 50, "min_p": 0.01})
    choice = answer.choices[0]
    check("chat", choice.message.role == "assistant" and answer.usage.completion_tokens <= 12)
    check("logprobs", len(choice.logprobs.content) == answer.usage.completion_tokens
          and len(choice.logprobs.content[0].top_logprobs) == 2)
    check("token ids", len(choice.model_extra["token_ids"]) == answer.usage.completion_tokens
          and answer.model_extra["prompt_token_ids"])
    text, usage, finish = "", None, None
    for chunk in create(model=model, messages=MESSAGES, max_tokens=12, seed=1, stream=True,
                        stream_options={"include_usage": True}, extra_body={"top_k": 50, "min_p": 0.01}):
        usage = chunk.usage or usage
        for piece in chunk.choices:
            text += piece.delta.content or ""
            finish = piece.finish_reason or finish
    check("the stream says the same", text == choice.message.content)
    check("and ends the same", finish == choice.finish_reason and usage.completion_tokens == answer.usage.completion_tokens)
    check("n", len(create(model=model, messages=MESSAGES, max_tokens=4, n=3).choices) == 3)
    forced = create(model=model, messages=MESSAGES, max_tokens=4, temperature=0, tools=TOOLS, tool_choice="auto",
                    stop=["\n\n"], presence_penalty=0.1, frequency_penalty=0.1, user="me", logit_bias={"1": -100})
    check("tools and penalties", forced.choices[0].finish_reason in ("stop", "length", "tool_calls"))
    named = {"type": "function", "function": {"name": "add"}}
    message = create(model=model, messages=MESSAGES, max_tokens=30, tools=TOOLS, tool_choice=named).choices[0].message
    check("a named tool", "add" in (message.tool_calls[0].function.name if message.tool_calls else message.content))
    # The client puts a stream together itself: text, calls by their index, log-probabilities, usage.
    with client.chat.completions.stream(model=model, messages=MESSAGES, max_tokens=12, seed=1, logprobs=True, n=2,
                                        stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        final = stream.current_completion_snapshot  # get_final_completion wants answers that end by themselves
    whole = create(model=model, messages=MESSAGES, max_tokens=12, seed=1, logprobs=True, n=2)
    check("its own accumulation of a stream", {"chunk", "content.delta", "content.done"} <= kinds
          and [c.message.content for c in final.choices] == [c.message.content for c in whole.choices]
          and [len(c.logprobs.content) for c in final.choices] == [len(c.logprobs.content) for c in whole.choices]
          and [c.finish_reason for c in final.choices] == [c.finish_reason for c in whole.choices]
          and final.usage.completion_tokens == whole.usage.completion_tokens)
    chunks = list(create(model=model, messages=MESSAGES, max_tokens=4, stream=True, stream_options={"include_usage": True}))
    check("usage in the last chunk alone", [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
          and not chunks[-1].choices)
    check("what is ignored", create(model=model, messages=MESSAGES, max_completion_tokens=2, user="me", metadata={"a": "b"}, store=True,
                                    response_format={"type": "text"}, parallel_tool_calls=False, tools=TOOLS, reasoning_effort="low",
                                    service_tier="auto").usage.completion_tokens <= 2)
    texts = client.completions.create(model=model, prompt="One", max_tokens=5, logprobs=2, seed=5, stop=["zzz", "yyy"], suffix=None, echo=False)
    pieces = list(client.completions.create(model=model, prompt="One", max_tokens=5, logprobs=2, seed=5, stream=True))
    check("a stream of a completion", "".join(c.text for p in pieces for c in p.choices) == texts.choices[0].text
          and sum((c.logprobs.text_offset for p in pieces for c in p.choices if c.logprobs), []) == texts.choices[0].logprobs.text_offset)
    for field, value in (("echo", True), ("suffix", "end"), ("best_of", 3)):
        error = raises(openai.BadRequestError, lambda: client.completions.create(model=model, prompt="One", **{field: value}))
        check(f"{field} is refused", error is not None and error.param == field)
    refusal = raises(openai.BadRequestError, lambda: create(model=model, messages=MESSAGES, response_format={"type": "json_object"}))
    check("response_format is refused", refusal is not None and refusal.param == "response_format")
    history = MESSAGES + [{"role": "assistant", "content": None,
                           "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
                          {"role": "tool", "tool_call_id": "1", "content": "5"}]
    check("a conversation with tools", create(model=model, messages=history, max_tokens=4).choices)
    check("completions", client.completions.create(model=model, prompt=["One", "Two"], max_tokens=4, logprobs=1).choices[1]
          .logprobs.token_logprobs)
    error = raises(openai.BadRequestError, lambda: create(model=model, messages=MESSAGES, temperature=-1))
    check("errors name the field", error is not None and error.param == "temperature")
    error = raises(openai.NotFoundError, lambda: create(model="other", messages=MESSAGES))
    check("another model is not found", error is not None and error.code == "model_not_found")
    stranger = openai.OpenAI(base_url=url + "/v1", api_key="wrong", max_retries=0)
    check("another key is refused", raises(openai.AuthenticationError, stranger.models.list))
    stream = create(model=model, messages=MESSAGES, max_tokens=200, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    check("a stream can be left", create(model=model, messages=MESSAGES, max_tokens=1).choices)


def hugging_face_client(url: str, model: str) -> None:
    from huggingface_hub import InferenceClient
    client = InferenceClient(base_url=url + "/v1", api_key="secret")
    answer = client.chat_completion(MESSAGES, model=model, max_tokens=8, seed=3, logprobs=True, top_logprobs=1)
    check("hugging face: chat", answer.usage.completion_tokens == len(answer.choices[0].logprobs.content))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in
                   client.chat_completion(MESSAGES, model=model, max_tokens=8, seed=3, stream=True))
    check("hugging face: the stream says the same", text == answer.choices[0].message.content)
    check("hugging face: tools", client.chat_completion(MESSAGES, model=model, max_tokens=4, tools=TOOLS).choices)


def main() -> int:
    if pathlib.Path(sys.executable) != PYTHON:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    forebay, model = sys.argv[1], (sys.argv[2:] or ["tiny:"])[0]
    token = ROOT / ".deps/clients/token"
    token.write_text("secret\n")
    server = subprocess.Popen([forebay, "serve", model, "--name", "policy", "--port", "0", "--token-file", token, "--quiet"],
                              stdout=subprocess.PIPE, text=True)
    try:
        url = None
        while url is None and (line := server.stdout.readline()):
            found = re.search(r"serving policy on (\S+)", line)
            url = found and found.group(1)
        openai_client(url, "policy")
        hugging_face_client(url, "policy")
    finally:
        server.terminate()
        print(server.communicate()[0].strip())
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())

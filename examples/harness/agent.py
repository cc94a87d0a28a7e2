"""An agent against OpenAI's HTTP API with nothing but the standard library: it asks, runs the tool that the answer calls,
tells what came of it, and in the end says what the answer was worth."""
import json
import os
import urllib.error
import urllib.request

import task

CALLS_MAX = 3
PROXY_FREE = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the endpoint is on this machine


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    with PROXY_FREE.open(request, timeout=300) as response:
        return json.load(response)


def play(messages: list) -> str:
    """The agent's last words."""
    said = ""
    for _ in range(CALLS_MAX):
        try:
            answer = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions",
                          {"model": "policy", "messages": messages, "tools": task.TOOLS, "max_tokens": 48})
        except urllib.error.HTTPError as error:
            if error.code == 400:  # no room for another answer
                return said
            raise
        message = answer["choices"][0]["message"]
        messages.append(message)
        said = message.get("content") or ""
        if not message.get("tool_calls"):
            return said
        for call in message["tool_calls"]:
            try:
                expression = str(json.loads(call["function"]["arguments"])["expression"])
                result = task.calculate(expression)
            except (ValueError, KeyError, TypeError):
                result = "error: the tool takes an expression"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return said


def main() -> None:
    question, right = task.question()
    said = play(task.opening(question))
    post(os.environ["FOREBAY_REWARD_URL"], {"rewards": task.rewards(said, right)})


if __name__ == "__main__":
    main()

"""The same agent with the official client, which reads the base URL and the key from the environment."""
import json

import openai
import task

CALLS_MAX = 3


def play(client: openai.OpenAI, messages: list) -> str:
    said = ""
    for _ in range(CALLS_MAX):
        try:
            answer = client.chat.completions.create(model="policy", messages=messages, tools=task.TOOLS, max_tokens=48)
        except openai.BadRequestError:  # no room for another answer
            return said
        message = answer.choices[0].message
        messages.append(message)
        said = message.content or ""
        if not message.tool_calls:
            return said
        for call in message.tool_calls:
            try:
                result = task.calculate(str(json.loads(call.function.arguments)["expression"]))
            except (ValueError, KeyError, TypeError):
                result = "error: the tool takes an expression"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return said


def main() -> None:
    question, right = task.question()
    said = play(openai.OpenAI(), task.opening(question))
    print(json.dumps({"rewards": task.rewards(said, right)}))


if __name__ == "__main__":
    main()

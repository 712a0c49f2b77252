"""Chat templates with the constructs of published ones, and conversations to try them with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# thinking: a variable, tools as JSON, earlier thoughts cut out (as Qwen's); headers: dates, tools
# indented (as Llama's); generation: the tags around what an assistant said, with macros (as
# SmolLM3's, LFM2.5's); turns: roles that alternate or are refused (as Gemma's); instructions:
# filters over messages, loops broken off (as Mistral's); shapes: JSON and dictionaries otherwise.
FOLDER = Path(__file__).parent / "chat_templates"
TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*"))}

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Wetter <&> é",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
USER = {"role": "user", "content": ' Say "<é>" & 日本 \n'}
IMAGE = {"type": "image"}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm", "n": 1}}}
TURN = [
    {"role": "system", "content": "Be  brief. "},
    USER,
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."},
    {"role": "user", "content": "And now?"},
]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "one message": ([USER], {}),
    "earlier turns": (TURN, {}),
    "a variable": (TURN, {"enable_thinking": False, "raw": 3}),
    "the variable otherwise": ([USER], {"enable_thinking": True, "date_string": "1 May"}),
    "tools": (
        [
            *TURN,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "rain"},
            {"role": "tool", "content": "and wind"},
        ],
        {"tools": [TOOL, TOOL]},
    ),
    "two calls": ([USER, {"role": "assistant", "tool_calls": [CALL, CALL]}], {"tools": [TOOL]}),
    "a thought": (
        [USER, {"role": "assistant", "content": "x", "thinking": "why"}, USER, USER],
        {"documents": [{"title": "a", "text": "banana"}]},
    ),
    "parts": (
        [{"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "image"}]}],
        {},
    ),
}

"""Requests in OpenAI's schema: what is taken, in which range, and what is refused by name.

A field that is not here is refused, never ignored. `NEUTRAL` ones are taken with the values under
which they change nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

MOST_TEXT = 1 << 20  # characters of one text
MOST_MESSAGES = 4096
# Field to the values that mean what is done anyway.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True, False),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")  # of a caller's own books
Text = Annotated[str, Field(max_length=MOST_TEXT)]


class Strict(BaseModel):
    """An object that has no other fields than these."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Strict):
    """``stream_options``."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class JsonSchema(Strict):
    """``response_format.json_schema``."""

    name: Text = ""
    description: Text | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type 'json_schema'")
        return self


class Function(Strict):
    """A function that may be called."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """An entry of ``tools``."""

    type: Literal["function"]
    function: Function


class ChosenFunction(Strict):
    """The function of a ``tool_choice``."""

    name: Text


class ToolChoice(Strict):
    """A ``tool_choice`` that names one function."""

    type: Literal["function"]
    function: ChosenFunction


class Decoding(Strict):
    """What chats and completions have in common.

    The temperature is 0 where none is given: the target's likeliest text.
    """

    model: Text | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    stop: Text | list[Text] | None = None
    draftrt_plain: bool = False

    @model_validator(mode="before")
    @classmethod
    def _drop_what_changes_nothing(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            raise ValueError("expected an object")
        kept = {}
        for key, value in data.items():
            if key in LABELS or (key in NEUTRAL and (value is None or _is_one(value, key))):
                continue
            if key in NEUTRAL and key not in cls.model_fields:
                raise ValueError(
                    f"{key} is {value!r:.80}, which is not supported: leave it out, or "
                    f"{' or '.join(map(repr, NEUTRAL[key]))}"
                )
            kept[key] = value
        return kept

    @field_validator("stop")
    @classmethod
    def _few_texts(cls, stop: str | list[str] | None) -> list[str] | None:
        texts = [stop] if isinstance(stop, str) else stop
        if texts is not None and (len(texts) > 16 or not all(texts)):
            raise ValueError("expected at most 16 texts, none of them empty")
        return texts

    @model_validator(mode="after")
    def _one_length(self) -> Decoding:
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise ValueError("max_tokens and max_completion_tokens: give one of them")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options goes with stream")
        return self


def _is_one(value: Any, key: str) -> bool:
    """Whether a value is one of those that change nothing, and no ``True`` for 1."""
    return any(type(value) is type(one) or _are_numbers(value, one) for one in NEUTRAL[key]) and (
        value in NEUTRAL[key]
    )


def _are_numbers(one: Any, other: Any) -> bool:
    return all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in (one, other))


class ChatRequest(Decoding):
    """Body of ``/v1/chat/completions``."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_MESSAGES)]
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0

    @model_validator(mode="after")
    def _tools_are_there(self) -> ChatRequest:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise ValueError("tools: two functions have one name")
        if self.tool_choice not in (None, "none", "auto") and not names:
            raise ValueError("tool_choice: there are no tools")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs")
        if isinstance(self.tool_choice, ToolChoice) and self.tool_choice.function.name not in names:
            raise ValueError(f"tool_choice: no tool {self.tool_choice.function.name!r:.80}")
        is_formatted = self.response_format is not None and self.response_format.type != "text"
        if is_formatted and names and self.tool_choice != "none":
            raise ValueError("response_format and tools: one output cannot obey both")
        return self


class CompletionRequest(Decoding):
    """Body of ``/v1/completions``: a text is taken as it is."""

    prompt: Text | list[int] | list[Text]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @field_validator("prompt")
    @classmethod
    def _one_prompt(cls, prompt: Any) -> Any:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
            if len(prompt) > 1:
                raise ValueError("expected one prompt: one text is decoded at a time")
            return prompt[0]
        if not prompt:
            raise ValueError("expected a text or ids, got none")
        return prompt

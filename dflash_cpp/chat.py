"""Chat messages to prompt text, by the model's own template."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dflash_cpp._core import Target
from dflash_cpp.errors import ModelError

Message = Mapping[str, Any]


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML, which a prompt is not.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def check_messages(messages: Sequence[Message]) -> None:
    """Raise ValueError unless `messages` is a non-empty list of {"role": ..., "content": ...}."""
    if not messages:
        raise ValueError("messages is empty; give at least one {'role': 'user', 'content': ...}")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise ValueError(f"messages[{i}] is {message!r}; each needs 'role' and 'content'")


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos_token: str,
    eos_token: str,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    """Render a chat template in Jinja's sandbox, with the helpers that templates expect.

    Raises
    ------
    ModelError
        There is no template, or it refuses these messages.
    ValueError
        The messages are malformed.
    """
    check_messages(messages)
    if not template:
        raise ModelError("the model has no chat template; give the prompt as text instead of messages")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda fmt: datetime.datetime.now().strftime(fmt)
    try:
        return environment.from_string(template).render(
            messages=[dict(message) for message in messages],
            bos_token=bos_token,
            eos_token=eos_token,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
    except jinja2.TemplateError as error:
        raise ModelError(f"the model's chat template refuses these messages: {error}") from error


def render_for(target: Target, messages: Sequence[Message], **variables: Any) -> str:
    """Render messages with a target's own template, up to where the answer begins."""

    def text_of(token: int) -> str:
        return target.detokenize([token], True).decode("utf-8", "replace") if token >= 0 else ""

    return render(
        target.chat_template, messages, bos_token=text_of(target.bos), eos_token=text_of(target.eos), **variables
    )


def prompt_tokens(target: Target, prompt: str | Sequence[Message]) -> list[int]:
    """Token ids of a prompt: text as it stands, messages through the target's template."""
    if isinstance(prompt, str):
        return target.tokenize(prompt, True)
    tokens = target.tokenize(render_for(target, prompt), True)
    # Some templates write the BOS themselves; the tokenizer then adds a second one.
    if len(tokens) > 1 and tokens[0] == tokens[1] == target.bos:
        del tokens[0]
    return tokens

"""Chats: their prompts with tools, and answers taken apart into reasoning, content and tool calls."""

from specruntime.chat.offer import ToolOffer, offered, require_alone
from specruntime.chat.prompt import ChatPrompt, chat_prompt
from specruntime.chat.reply import Message, Reasoned, Reply, ReplyStyle

__all__ = [
    "ChatPrompt",
    "Message",
    "Reasoned",
    "Reply",
    "ReplyStyle",
    "ToolOffer",
    "chat_prompt",
    "offered",
    "require_alone",
]

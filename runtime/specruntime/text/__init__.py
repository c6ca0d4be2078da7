"""Text in and out: the tokenizer, the stream of an answer's text, chat templates."""

"""SmolLM2-135M in other systems compared with this one: same prompts, same machine, same run. Start at README.md."""

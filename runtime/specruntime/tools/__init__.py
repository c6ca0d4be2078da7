"""Tool calls: the formats that models write them in, and what a chat needs to offer tools."""

"""Where a round's time goes: phases of the loop, windows of each graph, operators of each window."""

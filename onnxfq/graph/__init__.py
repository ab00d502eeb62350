"""The model as a graph: loading, saving, facts about ops, questions, edits. The home of graphsurgeon."""

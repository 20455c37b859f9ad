"""The catalogue of messages: a code, what it means and what to do, for each thing that Tidegate tells people."""

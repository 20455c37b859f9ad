"""The three processes of the operator image, each wired from its parts in one place."""

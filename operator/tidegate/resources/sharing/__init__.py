"""How nodes are shared out in slices: one file per way, behind one protocol."""

"""Who a visitor is, what they may do, and how it is done in their name."""

"""Catalogue of messages: a code, the meaning and what to do, for each reason and each finding."""

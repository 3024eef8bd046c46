"""Alerts: which rules are broken, which incidents are open, and the messages about them.

`rules` has what each alert compares and says; `changes` what the one about a change of taste says;
`incidents` opens and resolves; `messages` builds the texts, `channels` sends them.
"""

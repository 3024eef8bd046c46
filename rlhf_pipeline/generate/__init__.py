"""Makes what people compare: prompts, completions of policies and providers, comparisons.

In: settings, prompt files, a policy or a provider, the ledger of paid calls. Out: frames of
prompts, completions and comparisons; a comparison carries the champion's prediction from its
publication on. The assets are `prompts`, `completions` and `comparisons`.
"""

"""Plain words to make prompts of."""

WORDS = (  # noqa: SIM905
    "amber brook candle desert engine forest garden harbor island jungle kettle lantern meadow "
    "needle orchard pebble"
).split()
